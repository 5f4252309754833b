/* A page that asks, shows where the answer stands, stops it, and finds it again after a reload.
 *
 * A product's page would have no field for a token: its own backend gives it a short-lived one, as in
 * `token: () => fetch("/token").then((answer) => answer.text())`. */

import { chat, resume } from "./lockgate-stream.js";

const [form, ask, stop, status, text] = ["form", "ask", "stop", "status", "text"].map((id) =>
  document.getElementById(id),
);

const SHOWS = {
  queued: ({ position, etaMs }) =>
    position === null
      ? "Asked."
      : `Waiting: place ${position + 1}${etaMs === null ? "" : `, about ${Math.ceil(etaMs / 1000)} s`}.`,
  preparing: ({ progress }) => `Reading${progress === null ? "" : ` ${Math.round(progress * 100)} %`}.`,
  streaming: () => "Answering.",
  complete: () => "Done.",
  limited: ({ reason }) =>
    ({
      token_budget: "Ended here: the budget is used up.",
      max_tokens: "Ended here: the longest answer that was asked for.",
      context: "Ended here: the model has no room for more.",
    })[reason],
  failed: ({ message }) => message,
};

function listen(begin, options) {
  text.textContent = "";
  const stream = begin({
    ...options,
    onStatus(told) {
      status.dataset.state = told.state;
      status.textContent = SHOWS[told.state](told);
      ask.textContent = told.retryable ? "Ask again" : "Ask";
    },
    onDelta: (piece) => text.append(piece),
  });
  const { baseUrl, token } = options;
  sessionStorage.setItem("asked", JSON.stringify({ baseUrl, token, ticket: stream.ticket }));
  stop.disabled = false;
  stop.onclick = () => stream.cancel();
  void stream.done.then(() => {
    stop.disabled = true;
    sessionStorage.removeItem("asked");
  });
}

form.onsubmit = (event) => {
  event.preventDefault();
  const { baseUrl, token, model, question, max_tokens } = Object.fromEntries(new FormData(form));
  const body = { model, messages: [{ role: "user", content: question }] };
  if (max_tokens) body.max_tokens = Number(max_tokens);
  stop.onclick?.();
  listen(chat, { baseUrl, token, body });
};

const asked = sessionStorage.getItem("asked");
if (asked !== null) listen(resume, JSON.parse(asked));
