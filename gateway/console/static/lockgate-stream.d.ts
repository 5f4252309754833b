/** Types of lockgate-stream.js; its comments say how and why. */

export type State = "queued" | "preparing" | "streaming" | "complete" | "limited" | "failed";

export type Status =
  /** `position` is within the tenant, 0 is next; null where it is not known (yet). */
  | { readonly state: "queued"; readonly position: number | null; readonly etaMs: number | null }
  /** `progress` from 0 to 1. */
  | { readonly state: "preparing"; readonly progress: number | null }
  | { readonly state: "streaming" }
  | { readonly state: "complete"; readonly finishReason: string }
  | { readonly state: "limited"; readonly reason: "token_budget" | "max_tokens" | "context" | null }
  /** `retryable`: asking anew may help, not before `afterMs`.  `code` is the server's, or one of `cancelled`,
   * `connection_lost`, `incomplete`, `restarted`, `not_an_event_stream`, `client_error`. */
  | {
      readonly state: "failed";
      readonly retryable: boolean;
      readonly afterMs: number | null;
      readonly code: string | null;
      readonly message: string;
    };

export declare const TRANSITIONS: { readonly [from in State]: readonly State[] };

export interface Delta {
  readonly text: string;
  /** Of the choice. */
  readonly index: number;
  /** As it came; `tool_calls` are here. */
  readonly delta: { readonly content?: string | null; readonly tool_calls?: readonly unknown[] };
}

/** What it takes to hear an answer again.  Plain JSON; holds the prompt, so keep it no longer than needed. */
export interface Ticket {
  readonly key: string;
  readonly path: string;
  readonly body: Readonly<Record<string, unknown>>;
}

export interface ListenOptions {
  /** With /v1, say "https://llm.example.com/v1".  The page's origin must be listed in `cors_origins` of [listen]. */
  baseUrl: string;
  /** A token or key, or what gives one; asked before each request, so that it may be renewed. */
  token?: string | null | (() => string | Promise<string>);
  /** Further headers of each request, a DPoP proof say. */
  headers?: (method: string, url: string) => Record<string, string> | Promise<Record<string, string>>;
  onStatus?: (status: Status) => void;
  onDelta?: (text: string, index: number, delta: Delta["delta"]) => void;
  /** How long to wait, all together, between connections that bring nothing new.  Default 120,000. */
  patienceMs?: number;
  /** After how long without a byte a connection is given up.  Default 45,000. */
  silenceMs?: number;
  /** For tests. */
  fetch?: typeof globalThis.fetch;
  sleep?: (ms: number, signal: AbortSignal) => Promise<void>;
  random?: () => number;
}

export interface AskOptions extends ListenOptions {
  /** As for POST /v1/chat/completions; `stream` and `stream_options.x_status` are set. */
  body: Record<string, unknown>;
  /** Default: a random UUID. */
  key?: string;
  path?: string;
}

export declare function chat(options: AskOptions): LockgateStream;
export declare function resume(options: ListenOptions & { ticket: Ticket }): LockgateStream;
export declare function statusOfComment(comment: string): Status | null;

export declare class LockgateStream implements AsyncIterable<Delta> {
  constructor(options: AskOptions & { key: string });
  readonly key: string;
  readonly url: string;
  readonly ticket: Ticket;
  /** Its last status.  Rejects only where a callback of the page's threw. */
  readonly done: Promise<Status>;
  get status(): Status;
  get text(): string;
  cancel(): Promise<void>;
  [Symbol.asyncIterator](): AsyncGenerator<Delta, void, undefined>;
}

export declare class LockgateError extends Error {
  constructor(status: Status);
  readonly status: Status;
}

export declare class Progress {
  constructor(onStatus?: (status: Status) => void);
  readonly status: Status;
  get isOver(): boolean;
  enter(status: Status | null): boolean;
}

export declare class EventParser {
  push(bytes: Uint8Array): Array<{ comment: string } | { data: string }>;
}
