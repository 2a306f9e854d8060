/** Questions to the server, and how long to wait before the next. */

/** What a route answers, decoded; an error that tells what is wrong if the server is gone. */
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

/** Whether the server is still at work on what was asked. */
export const isUnderWay = (answer) => ['waiting', 'queued', 'analyzing'].includes(answer.stage);

/**
 * Ask until the answer is there. Calls `onState` with each answer that is not the last one, and
 * ends with null as soon as `isStale()`: the reader went elsewhere.
 */
export async function askUntilReady(route, query, onState, isStale) {
  let pause = 250;
  for (;;) {
    const answer = await ask(route, query);
    if (isStale()) return null;
    if (!isUnderWay(answer)) return answer;
    onState(answer);
    await wait(pause);
    if (isStale()) return null;
    pause = Math.min(pause * 1.3, 2000);
  }
}
