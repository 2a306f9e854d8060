/** What TensorBoard calls in the tab's frame: the page of this plugin takes the frame over. */
export async function render() {
  document.location.replace('index.html');
}
