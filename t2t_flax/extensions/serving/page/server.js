// Requests to the server, by addresses relative to the page.

/** What the server answered instead of a result; `busy` and `notReady` pass by themselves. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.busy = status === 429;
    this.notReady = status === 503 || status === 502 || status === 0;
  }
}

async function answer(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { Accept: "application/json", ...options.headers } });
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
export const postAttention = post("attention");
