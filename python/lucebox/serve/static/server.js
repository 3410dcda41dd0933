// HTTP requests to the page's server. Answers are kept streams: they go on without the page, which may read them again.

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const key = document.getElementById("key").value;
  return key ? { authorization: `Bearer ${key}` } : {};
}

// Waits until the user has given another key.
export function keyChange(signal) {
  return new Promise((resolve) => {
    document.getElementById("key").addEventListener("change", resolve, { once: true, signal });
    signal.addEventListener("abort", resolve);
  });
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ServerError(body?.error?.message ?? `${response.status} ${response.statusText}`, response.status);
}

export async function getJson(path) {
  const response = await checked(await fetch(path, { headers: headers() }));
  return response.json();
}

// The events of an answer, which the server keeps under a name.
export async function* startStream(name, body, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json", "lucebox-stream": name },
    body: JSON.stringify(body),
    signal,
  });
  yield* events(response);
}

// The events of a kept answer, from its start.
export async function* readStream(name, signal) {
  yield* events(await fetch(`/v1/streams/${name}`, { headers: headers(), signal }));
}

// Ends an answer on the server too.
export async function endStream(name) {
  await fetch(`/v1/streams/${name}`, { method: "DELETE", headers: headers(), keepalive: true }).catch(() => null);
}

async function* events(response) {
  const reader = (await checked(response)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new TypeError("the connection ended before the answer did");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error?.code === "cancelled") throw new DOMException("stopped", "AbortError");
      if (event.error) throw new ServerError(event.error.message, 0);
      yield event;
    }
  }
}
