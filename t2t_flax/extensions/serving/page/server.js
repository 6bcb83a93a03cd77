// Requests to the server, by addresses relative to the page.

/** What the server answered instead of a result; `busy` and `notReady` pass by themselves. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.busy = status === 429;
    this.notReady = status === 503 || status === 502 || status === 0;
  }
}

let key = "";
let asksForKey = true;

/** Whether the user gave a key, where the server wants one; who declines is not asked again. */
function gotKey() {
  const given = asksForKey ? window.prompt("API key of this server") : null;
  asksForKey = given !== null;
  key = given?.trim() ?? key;
  return asksForKey;
}

async function answer(path, options) {
  let response;
  const login = key ? { Authorization: `Bearer ${key}` } : {};
  try {
    response = await fetch(path, { ...options, headers: { Accept: "application/json", ...login, ...options.headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer. Is it still running?");
  }
  let body;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(`The server answered ${response.status} ${response.statusText}.`, response.status);
  }
  if (response.ok) return body;
  if (response.status === 403 && gotKey()) return answer(path, options);
  const text = typeof body?.error === "string" ? body.error : `The server answered ${response.status}.`;
  throw new ServerError(text, response.status);
}

export const getModels = () => answer("api/models", { cache: "no-store" });

const post = (name) => (body, signal) =>
  answer(`api/${name}`, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
    signal,
  });

export const postTranslate = post("translate");

/** The answer with weights from 0 to 1 in the place of thousandths. */
export async function postAttention(body, signal) {
  const pair = await post("attention")(body, signal);
  const weights = (layers) => layers.map((heads) => heads.map((rows) => rows.map((row) => row.map((w) => w / 1000))));
  return { ...pair, ...Object.fromEntries(["cross", "encoder", "decoder"].map((kind) => [kind, weights(pair[kind])])) };
}
