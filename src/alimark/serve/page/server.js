// Sends requests to the service. Every failure is thrown as an Error whose message is a sentence for the user.

const STORED = "alimark-token";

export const token = {
  get: () => sessionStorage.getItem(STORED) ?? "",
  set: (value) => sessionStorage.setItem(STORED, value),
};

async function send(path, options, open = false) {
  if (!token.get() && !open) throw new Error("Enter a token first. An administrator can create one.");
  let answer;
  try {
    const authorization = token.get() ? { authorization: `Bearer ${token.get()}` } : {};
    answer = await fetch(path, { ...options, headers: { ...options.headers, ...authorization } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Check that it is running.");
  }
  if (answer.ok) return answer;
  let message = `The server answered with status ${answer.status}.`;
  try {
    message = (await answer.json()).error.message;
  } catch { /* the body is not JSON, so only the status is shown */ }
  const wait = answer.headers.get("retry-after");
  throw new Error(message + (wait ? ` Try again in ${wait} s.` : ""));
}

export async function get(path) {
  return (await send(path, { method: "GET" })).json();
}

export async function remove(path) {
  await send(path, { method: "DELETE" });
}

export async function post(path, body, signal) {
  const answer = await send(path, {
    method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, signal,
  });
  return answer.json();
}

// Asks an endpoint that may need no token, and returns its answer, of the media type `accept`, as it is.
export async function postForText(path, body, accept) {
  const headers = { "content-type": "application/json", accept };
  return (await send(path, { method: "POST", body: JSON.stringify(body), headers }, true)).text();
}

const KINDS = ["txt", "md", "html", "docx", "odt", "pdf", "epub", "rtf", "eml"];

export async function extract(file) {
  const ending = file.name.toLowerCase().split(".").pop();
  const kind = ending === "htm" ? "html" : ending;
  if (!KINDS.includes(kind)) throw new Error(`${file.name} cannot be read. Choose a file of these kinds: ${KINDS.join(", ")}.`);
  const answer = await send(`/v1/extract?kind=${kind}`, {
    method: "POST", body: file, headers: { "content-type": "application/octet-stream" },
  });
  return (await answer.json()).text;
}

// Calls `onEvent` with each event of a streamed response.
export async function stream(path, body, onEvent, signal) {
  const answer = await send(path, {
    method: "POST", body: JSON.stringify({ ...body, stream: true }), headers: { "content-type": "application/json" }, signal,
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The response ended before it was complete. Try again.");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event === "data: [DONE]") return;
      const content = JSON.parse(event.slice("data: ".length));
      if (content.error) throw new Error(content.error.message);
      onEvent(content);
    }
  }
}
