/** The script that TensorBoard loads into the tab's frame: it replaces the frame's page. */
export async function render() {
  document.location.replace('index.html');
}
