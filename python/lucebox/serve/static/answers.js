// Answers that are being written, in any chat. They go on while other chats are shown, and after a reload: the server
// keeps the stream whose name the turn has, and the page reads it again from its start.
import { endStream, keyChange, readStream, ServerError, startStream } from "/static/server.js";
import { saveTurn } from "/static/store.js";

const SAVE_MS = 2000; // between saves
const START_MS = 5000; // from a request until the server knows its stream
const RETRIES = 10; // to reach a server whose connection broke
const RETRY_MS = 1000;
const LOST = "The answer was cut off: the server no longer has it.";
const running = new Map(); // id of the turn -> {turn, view, abort}

export const isRunning = ({ id }) => running.has(id);
export const runningView = ({ id }) => running.get(id)?.view ?? null;
export const runningTurn = (id) => running.get(id)?.turn ?? null;
export const isAnswering = (chat) => [...running.values()].some(({ turn }) => turn.chat === chat);

// Reads the answer of a turn to its end: requests it by a body, or goes on (null) with what the server keeps. The error
// that ended it, or null. turn.base is the message that it continues, null: none. Nothing is requested before `saved`.
export async function readAnswer(turn, view, body, saved) {
  const abort = new AbortController();
  running.set(turn.id, { turn, view, abort });
  let savedAt = Date.now();
  try {
    await saved;
    abort.signal.throwIfAborted();
    for await (const event of body ? started(turn, view, body, abort.signal) : resumed(turn, view, abort.signal)) {
      view.take(event);
      if (view.isEmpty || Date.now() - savedAt < SAVE_MS) continue;
      savedAt = Date.now();
      await saveTurn({ ...turn, ...view.kept() });
    }
    view.end();
    return null;
  } catch (error) {
    view.fail(error);
    return error;
  } finally {
    running.delete(turn.id);
  }
}

export function stopAnswers(chat) {
  for (const { turn, abort } of running.values()) {
    if (turn.chat !== chat) continue;
    abort.abort();
    endStream(turn.stream);
  }
}

async function* started(turn, view, body, signal) {
  try {
    yield* startStream(turn.stream, body, signal);
  } catch (error) {
    if (view.isEmpty || !isBroken(error)) throw error;
    yield* resumed(turn, view, signal);
  }
}

async function* resumed(turn, view, signal) {
  for (let tries = 0; ; tries += 1) {
    let isFirst = true;
    try {
      for await (const event of readStream(turn.stream, signal)) {
        if (isFirst) view.restart(turn.base);
        isFirst = false;
        yield event;
      }
      return;
    } catch (error) {
      const isEarly = error.status === 404 && Date.now() - turn.askedAt < START_MS;
      if (error.status === 404 && !isEarly) throw new ServerError(LOST, 404);
      if (error.status === 401) await keyChange(signal);
      else if (!isEarly && (!isBroken(error) || tries === RETRIES)) throw error;
      else await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      signal.throwIfAborted();
    }
  }
}

// Whether the connection failed, not the request.
const isBroken = (error) => error instanceof TypeError;
