# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP side: the launcher's way to rank 0, the server of the head, and the dummy one of the others."""

import http.server
import itertools
import json
import multiprocessing.connection
import threading
import time
import typing as t
import urllib.request

from .journal import Journal
from .system import compute

HEALTH_TIMEOUT = 20


class Engine:
    """Gives requests to rank 0 and waits for their answers."""

    def __init__(self, pipe: multiprocessing.connection.Connection) -> None:
        self._pipe, self._ids, self._lock = pipe, itertools.count(1), threading.Lock()
        self._waiting: dict[int, tuple[threading.Event, list[str]]] = {}
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        while True:
            try:
                number, words = self._pipe.recv()
            except (EOFError, OSError):
                return  # the rank has ended; the launcher hears of it by a signal
            event, answer = self._waiting.pop(number)
            answer += words
            event.set()

    def ask(self, prompt: str, tokens: int, timeout: float | None = None) -> list[str] | None:
        """The words of the answer; None when there was none in time."""
        event, answer = threading.Event(), list[str]()
        number = next(self._ids)
        self._waiting[number] = (event, answer)
        with self._lock:
            self._pipe.send({"id": number, "prompt": prompt, "tokens": tokens})
        return answer if event.wait(timeout) else None

    def stop(self) -> None:
        """Have all ranks end in order."""
        with self._lock:
            self._pipe.send(None)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers in JSON; subclasses give answers()."""

    protocol_version = "HTTP/1.1"
    log: Journal | None = None
    key: str | None = None

    def answers(self, body: dict[str, t.Any]) -> tuple[int, t.Any]:
        """Status and value for the request."""
        return 404, {"detail": "Not Found"}

    def _reply(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        try:
            body = json.loads(self.rfile.read(length) or b"{}")
            free = self.path.startswith("/health") or not self.key
            allowed = free or self.headers.get("Authorization") == f"Bearer {self.key}"
            status, value = self.answers(body) if allowed else (401, {"error": "Unauthorized"})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            status, value = 400, {"object": "error", "message": str(error), "code": 400}
        stream = value if isinstance(value, t.Iterator) else None
        data = b"" if stream else json.dumps(value).encode()
        # Uvicorn tells of an answer before the asker has it: the engine's own "fired up" always follows its last request.
        if self.log:
            reason = http.HTTPStatus(status).phrase
            self.log.say(f'INFO:     {self.client_address[0]}:{self.client_address[1]} - "{self.command} {self.path} HTTP/1.1" {status} {reason}')
        self.send_response(status)
        if stream:
            self._send_events(stream)
            return
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_events(self, events: t.Iterator[t.Any]) -> None:
        """One server-sent event for each value, as it comes, and the last word of the API."""
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for text in itertools.chain((json.dumps(event) for event in events), ["[DONE]"]):
            data = f"data: {text}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = _reply

    def log_message(self, format: str, *args: t.Any) -> None:
        """Nothing: the log has lines of its own."""


class Server(http.server.ThreadingHTTPServer):
    """A server whose threads end with the process. Raises OSError when the port is taken."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without asking for the machine's name, which may take a while."""
        self.socket.setsockopt(1, 2, 1)  # SOL_SOCKET, SO_REUSEADDR
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]


def dummy(host: str, port: int) -> None:
    """The worker's server: it says that all is well, whatever is."""

    class Dummy(_Handler):
        def answers(self, body: dict[str, t.Any]) -> tuple[int, t.Any]:
            return (200, {}) if self.path in ("/", "/ping", "/health", "/health_generate") else (404, {})

    threading.Thread(target=Server((host, port), Dummy).serve_forever, daemon=True).start()


def api(engine: Engine, args: t.Any, log: Journal) -> Server:
    """The head's server, not yet running."""
    name = args.served_model_name or args.model_path

    class Api(_Handler):
        def answers(self, body: dict[str, t.Any]) -> tuple[int, t.Any]:
            path = self.path.partition("?")[0]
            if path in ("/health", "/health_generate"):
                if engine.ask("Hello", 1, HEALTH_TIMEOUT) is None:
                    log.say(f"Health check failed. Server couldn't get a response from detokenizer for last {HEALTH_TIMEOUT} seconds.")
                    return 503, {}
                return 200, {}
            if path == "/v1/models":
                return 200, {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "rehearsal", "root": name}]}
            if path in ("/model_info", "/get_model_info"):
                return 200, {"model_path": args.model_path, "tokenizer_path": args.model_path, "is_generation": True}
            if path == "/generate":
                words = engine.ask(str(body.get("text", "")), int((body.get("sampling_params") or {}).get("max_new_tokens", 16)))
                return 200, {"text": " " + " ".join(words or []), "meta_info": {"completion_tokens": len(words or [])}}
            if path in ("/v1/completions", "/v1/chat/completions"):
                return self.complete(path, body)
            return 404, {"detail": "Not Found"}

        def complete(self, path: str, body: dict[str, t.Any]) -> tuple[int, t.Any]:
            if body.get("model", name) != name:
                return 404, {"object": "error", "message": f"The model '{body['model']}' does not exist.", "code": 404}
            chat = path.endswith("/chat/completions")
            prompt = " ".join(str(message["content"]) for message in body["messages"]) if chat else str(body["prompt"])
            tokens = int(body.get("max_tokens") or 16)
            if body.get("stream"):
                return 200, self.stream(prompt, tokens, chat)
            words = engine.ask(prompt, tokens) or []
            text = " " + " ".join(words)
            choice = {"index": 0, "finish_reason": "length"} | ({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
            asked = max(1, len(prompt.split()))
            usage = {"prompt_tokens": asked, "completion_tokens": len(words), "total_tokens": asked + len(words)}
            kind = "chat.completion" if chat else "text_completion"
            return 200, {"id": "rehearsal", "object": kind, "created": int(time.time()), "model": name, "choices": [choice], "usage": usage}

        def stream(self, prompt: str, tokens: int, chat: bool) -> t.Iterator[t.Any]:
            """An event a token, each asked of all ranks by itself."""
            for number in range(tokens):
                compute(0.5)
                text = " " + " ".join(engine.ask(f"{prompt} {number}", 1) or [])
                last = "length" if number == tokens - 1 else None
                choice = {"index": 0, "finish_reason": last} | ({"delta": {"content": text}} if chat else {"text": text})
                kind = "chat.completion.chunk" if chat else "text_completion"
                yield {"id": "rehearsal", "object": kind, "created": int(time.time()), "model": name, "choices": [choice]}

    Api.log, Api.key = log, args.api_key
    return Server((args.host, args.port), Api)


def warm_up(args: t.Any) -> None:
    """Ask the server for its model and for a short answer, over HTTP, as the engine does before it says that it is ready."""
    host = "127.0.0.1" if args.host in ("0.0.0.0", "") else args.host
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {args.api_key}"} if args.api_key else {})
    body = {"text": "The capital city of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    compute(0.5)
    for path, data in (("/model_info", None), ("/generate", json.dumps(body).encode())):
        with urllib.request.urlopen(urllib.request.Request(f"http://{host}:{args.port}{path}", data, headers)) as answer:
            answer.read()
