/** Requests to the server. */

/** Return the decoded answer of a route; an error if the server cannot be reached. */
export async function ask(route, query = {}) {
  const address = `${route}?${new URLSearchParams(query)}`;
  let answer;
  try {
    answer = await fetch(address, { credentials: 'same-origin' });
    return await answer.json();
  } catch {
    const error = answer ? `TensorBoard answered ${answer.status}.` : 'TensorBoard does not answer.';
    return { stage: 'failed', error, hint: 'Is it still running?', can_retry: true };
  }
}

export const wait = (ms) => new Promise((done) => { setTimeout(done, ms); });

/** Return whether the server has not finished a task yet. */
export const isPending = (answer) => ['waiting', 'queued', 'analyzing'].includes(answer.stage);

/**
 * Poll a route until its task is finished. Calls `onProgress` with each earlier answer, and returns
 * null as soon as `isStale()`: the reader has left the view.
 */
export async function askUntilReady(route, query, onProgress, isStale) {
  let pauseMs = 250;
  for (;;) {
    const answer = await ask(route, query);
    if (isStale()) return null;
    if (!isPending(answer)) return answer;
    onProgress(answer);
    await wait(pauseMs);
    if (isStale()) return null;
    pauseMs = Math.min(pauseMs * 1.3, 2000);
  }
}
