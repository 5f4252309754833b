// The page of the API: openapi.json, shown as operations with a curl line each, and as schemas.
// Everything is put in as text, never as markup; nothing is fetched but openapi.json.

const REFERENCE = "#/components/schemas/";

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function resolved(api, schema) {
  let at = schema ?? {};
  for (let hops = 0; at.$ref && hops < 8; hops += 1)
    at = api.components.schemas[at.$ref.slice(REFERENCE.length)] ?? {};
  return at;
}

function schemaLink(name) {
  return element("a", { href: `#schema-${name}` }, name);
}

/** Words between backticks are code; nothing else is more than text. */
export function prose(text) {
  return (text ?? "").split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));
}

/** What a schema asks for, in a line: its kind, its bounds, links to what it names. */
export function described(schema) {
  const out = [];
  const say = (...parts) => out.push(...parts);
  if (schema === undefined) return ["anything"];
  if (schema.$ref) return [schemaLink(schema.$ref.slice(REFERENCE.length))];
  const several = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (several) {
    const word = schema.allOf ? " and " : " or ";
    several.forEach((each, place) => say(...(place ? [word] : []), ...described(each)));
    return out;
  }
  if (schema.enum) return [schema.enum.map((value) => JSON.stringify(value)).join(", ")];
  if (schema.type === "array") return ["list of ", ...described(schema.items)];
  if (schema.type === "object" && schema.additionalProperties)
    say("object of ", ...described(schema.additionalProperties === true ? undefined : schema.additionalProperties));
  else say(schema.type ?? "anything");
  const bounds = [];
  if (schema.minimum !== undefined) bounds.push(`at least ${schema.minimum}`);
  if (schema.maximum !== undefined) bounds.push(`at most ${schema.maximum}`);
  if (schema.minLength) bounds.push(`${schema.minLength} characters or more`);
  if (schema.maxLength !== undefined) bounds.push(`${schema.maxLength} characters or fewer`);
  if (schema.pattern) bounds.push(schema.pattern);
  if (bounds.length) say(` (${bounds.join(", ")})`);
  return out;
}

/** A line for a shell. `server` has no slash at its end. */
export function curl(server, path, method, operation) {
  const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const line = [`curl ${quoted(server + path.replace("{id}", "ID"))}`];
  if (method !== "get") line.push(`-X ${method.toUpperCase()}`);
  if (operation.security?.length !== 0) line.push('-H "Authorization: Bearer $LOCKGATE_TOKEN"');
  const body = operation.requestBody?.content["application/json"];
  if (body) {
    line.push("-H 'Content-Type: application/json'");
    line.push(`-d ${quoted(JSON.stringify(body.example ?? {}))}`);
  }
  return line.join(" \\\n  ");
}

function fields(schema) {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) =>
    element(
      "tr",
      {},
      element("td", {}, element("code", {}, name), required.has(name) ? " (required)" : ""),
      element("td", {}, ...described(field), field.description ? `. ${field.description}` : ""),
    ),
  );
  return element("table", {}, element("tbody", {}, ...rows));
}

function bodyOf(content) {
  return Object.entries(content ?? {}).flatMap(([kind, { schema }]) => [
    element("p", {}, element("code", {}, kind), ": ", ...described(schema)),
  ]);
}

function operationView(api, server, path, method, operation) {
  const head = element(
    "summary",
    {},
    element("span", { class: "method" }, method.toUpperCase()),
    element("code", {}, path),
    " ",
    ...prose(operation.summary),
  );
  const view = element("details", { id: operation.operationId }, head);
  if (operation.description) view.append(element("p", {}, ...prose(operation.description)));
  view.append(element("pre", {}, curl(server, path, method, operation)));
  for (const parameter of operation.parameters ?? [])
    view.append(
      element(
        "p",
        {},
        element("code", {}, parameter.name),
        ` (${parameter.in}): `,
        ...described(parameter.schema),
        ...(parameter.description ? [". ", ...prose(parameter.description)] : []),
      ),
    );
  if (operation.requestBody) {
    view.append(element("h4", {}, "Body"), ...bodyOf(operation.requestBody.content));
    const schema = resolved(api, operation.requestBody.content["application/json"].schema);
    if (schema.properties) view.append(fields(schema));
  }
  view.append(element("h4", {}, "Answers"));
  for (const [status, answer] of Object.entries(operation.responses))
    view.append(
      element("p", {}, element("code", {}, status), " ", ...prose(answer.description)),
      ...(status === "200" ? bodyOf(answer.content) : []),
    );
  return view;
}

function show(api, server) {
  const operations = [];
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, operation] of Object.entries(methods))
      operations.push({ path, method, operation });
  const list = document.getElementById("operations");
  const opened = new Set([...list.querySelectorAll("details[open]")].map((each) => each.id));
  list.replaceChildren();
  const index = element("ul");
  for (const { name } of api.tags) {
    list.append(element("h2", {}, name));
    for (const { path, method, operation } of operations) {
      if (!operation.tags.includes(name)) continue;
      const view = operationView(api, server, path, method, operation);
      view.open = opened.has(view.id);
      list.append(view);
      const link = element("a", { href: `#${operation.operationId}` }, `${method.toUpperCase()} ${path}`);
      index.append(element("li", {}, link));
    }
  }
  document.getElementById("operations-index").replaceChildren(index);
}

function showSchemas(api) {
  const list = document.getElementById("schemas");
  list.replaceChildren(element("h2", {}, "Schemas"));
  for (const [name, schema] of Object.entries(api.components.schemas)) {
    const view = element("details", { id: `schema-${name}` }, element("summary", {}, element("code", {}, name)));
    if (schema.description) view.append(element("p", {}, ...prose(schema.description)));
    view.append(fields(schema));
    list.append(view);
  }
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.tagName === "DETAILS") target.open = true;
}

async function main() {
  const state = document.getElementById("state");
  const server = document.getElementById("server");
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error(`openapi.json: ${answer.status}`);
  const api = await answer.json();
  document.getElementById("about").append(`Version ${api.info.version}. `, ...prose(api.info.description));
  server.value = location.origin;
  const redraw = () => show(api, server.value.replace(/\/+$/, ""));
  server.addEventListener("input", redraw);
  redraw();
  showSchemas(api);
  state.remove();
  window.addEventListener("hashchange", openTarget);
  openTarget();
}

if (typeof document !== "undefined")
  main().catch((why) => {
    document.getElementById("state").textContent = `The document could not be read: ${why.message}`;
  });
