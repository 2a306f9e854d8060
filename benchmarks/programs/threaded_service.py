"""An HTTP service with a thread for each connection; the main thread only waits for its clients."""

import http.client
import http.server
import sys
import threading

import torch
from torch import nn

N_CLIENTS = 4
N_REQUESTS = 1500 * int(sys.argv[1] if len(sys.argv) > 1 else 1)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).eval()


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers ``GET /number`` with a label."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet an answer

    def do_GET(self) -> None:
        """Answer one request."""
        with torch.no_grad():
            label = model(torch.full((8, 64), float(self.path[1:]))).argmax(dim=1)[0].item()
        body = b"%d" % label
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Print nothing for a request."""


def ask(totals: list[int]) -> None:
    """Ask as one client, and return the sum of the answers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    total = 0
    for number in range(N_REQUESTS):
        connection.request("GET", f"/{number % 7}")
        total += int(connection.getresponse().read())
    connection.close()
    totals.append(total)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
answers: list[int] = []
clients = [threading.Thread(target=ask, args=(answers,)) for _ in range(N_CLIENTS)]
for client in clients:
    client.start()
for client in clients:
    client.join()
server.shutdown()
print(sum(answers))
