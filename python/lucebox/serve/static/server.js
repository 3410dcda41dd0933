// HTTP requests to the page's server.

function headers() {
  const key = document.getElementById("key").value;
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Error(body?.error?.message ?? `${response.status} ${response.statusText}`);
}

export async function getJson(path) {
  const response = await checked(await fetch(path, { headers: headers() }));
  return response.json();
}

// The JSON events of a streamed answer. Aborting the signal cancels the request on the server too.
export async function* events(path, body, signal) {
  const response = await fetch(path, {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  const reader = (await checked(response)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
