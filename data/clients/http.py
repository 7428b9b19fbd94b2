#!/usr/bin/env python3
"""http.py - an HTTP front for dflash-generate --listen: /v1/models, /v1/completions, /v1/chat/completions.

    dflash-generate -m TARGET.gguf -d DRAFTER.gguf --listen /run/user/1000/dflash &
    data/clients/http.py --socket /run/user/1000/dflash --port 8080

Python's standard library alone. A request is one line to the socket, its answer lines back (docs/serve.md).
Text becomes ids by dflash-tokenize, which must be on PATH or be named by --tokenize. What a parameter asks
for is done or refused: a key that is not known here is an error, not ignored.
"""

import os
import sys

sys.path[:] = [p for p in sys.path if os.path.realpath(p) != os.path.dirname(os.path.realpath(__file__))]  # http is a package too

import argparse
import json
import select
import socket
import subprocess
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# Taken, and meaningless here: they say nothing of what is written.
IDLE = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "model", "stream",
        "stream_options", "messages", "prompt", "n", "best_of", "stop", "chat_template_kwargs", "enable_thinking",
        "cache_prompt", "ignore_eos", "max_tokens", "max_completion_tokens", "echo", "suffix", "logprobs", "tools",
        "tool_choice", "response_format", "parallel_tool_calls", "timeout_s"}
NUMBERS = {"temperature": "temp", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed",
           "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
           "repeat_penalty": "repeat_penalty", "repetition_penalty": "repeat_penalty", "repeat_last_n": "repeat_last"}
BAD = {"bad_args", "bad_json", "bad_prompt", "empty_prompt", "context_overflow", "token_budget"}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
BODY_MOST = 1 << 24


class Refused(Exception):
    def __init__(self, message, status=400, code=None, param=None):
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class Gone(Exception):
    """The HTTP client closed its connection."""


class Engine:
    """The process behind the socket."""

    def __init__(self, path, tokenize, model):
        self.path, self.tokenize, self.model = path, tokenize, model
        self.ids_of = {}
        self.lock = threading.Lock()

    def lines(self, request, gone=None):
        """Send one request; yield the lines that answer it. gone: a socket that ends the request when it closes."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            try:
                s.connect(self.path)
            except OSError as e:
                raise Refused(f"no engine at {self.path}: {e.strerror}", 503, "no_engine") from e
            s.sendall(json.dumps(request).encode() + b"\n")
            held = b""
            while True:
                ready, _, _ = select.select([s] + ([gone] if gone else []), [], [])
                if gone in ready and not gone.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    raise Gone()
                if s not in ready:
                    gone = None  # it sends more: not asked again
                    continue
                piece = s.recv(1 << 16)
                if not piece:
                    raise Refused("the engine closed the connection", 502, "engine_closed")
                held += piece
                *whole, held = held.split(b"\n")
                for line in whole:
                    yield json.loads(line)

    def ask(self, request):
        return next(self.lines(request))

    def target(self):
        return self.model or self.ask({"op": "stats"})["models"]["target"]

    def encode(self, text, *flags):
        """Bytes on dflash-tokenize's stdin to ids."""
        done = subprocess.run([self.tokenize, "-q", "-m", self.target(), *flags], input=text, capture_output=True, check=False)
        if done.returncode:
            message = done.stderr.decode(errors="replace").splitlines() or ["dflash-tokenize failed"]
            raise Refused(message[0].removeprefix("dflash-tokenize: "), 400 if done.returncode == 3 else 500)
        return list(memoryview(done.stdout).cast("i"))

    def special(self, text):
        """The id of a token, or None where its text is more than one."""
        with self.lock:
            if text not in self.ids_of:
                ids = self.encode(text.encode(), "--special", "--no-bos")
                self.ids_of[text] = ids[0] if len(ids) == 1 else None
            return self.ids_of[text]


def text_of(content, where):
    """A message's content: a text, or parts of text."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused(f"{where}: expected a text or an array of parts")
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in ("text", "input_text") or not isinstance(part.get("text", ""), str):
            raise Refused(f"{where}: only parts of text are taken")
    return "".join(part.get("text", "") for part in content)


def messages_to_lines(messages):
    if not isinstance(messages, list) or not messages:
        raise Refused("messages: expected a list that is not empty", param="messages")
    lines = []
    for i, m in enumerate(messages):
        if not isinstance(m, dict) or not isinstance(m.get("role"), str) or m["role"] not in ROLES:
            raise Refused(f"messages[{i}].role: expected one of {', '.join(ROLES)}", param="messages")
        unknown = set(m) - {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "refusal", "annotations", "audio", "name"}
        if unknown:
            raise Refused(f"messages[{i}]: unknown key {sorted(unknown)[0]}", param="messages")
        line = {"role": ROLES[m["role"]], "content": text_of(m.get("content"), f"messages[{i}].content")}
        for key in ("reasoning_content", "tool_calls", "tool_call_id"):
            if m.get(key) is not None:
                line[key] = m[key]
        if line["content"] is None and "tool_calls" in line:
            del line["content"]
        lines.append(json.dumps(line, ensure_ascii=False))
    return "\n".join(lines).encode() + b"\n"


def thinking(body):
    asked = body.get("chat_template_kwargs") or {}
    if not isinstance(asked, dict):
        raise Refused("chat_template_kwargs: expected an object", param="chat_template_kwargs")
    unknown = set(asked) - {"enable_thinking"}
    if unknown:
        raise Refused(f"chat_template_kwargs: unknown key {sorted(unknown)[0]}", param="chat_template_kwargs")
    want = asked.get("enable_thinking", body.get("enable_thinking"))
    if want is None:
        return []
    return ["--think"] if want else ["--no-think"]


def request_of(body, ids):
    """The line for the engine."""
    for key in body:
        if key not in IDLE and key not in NUMBERS:
            raise Refused(f"unknown parameter {key}", code="unknown_parameter", param=key)
    for key, harmless in (("n", (None, 1)), ("best_of", (None, 1)), ("echo", (None, False)), ("suffix", (None, "")),
                          ("logprobs", (None, False, 0)), ("tools", (None, [])), ("tool_choice", (None, "none", "auto")),
                          ("response_format", (None, {"type": "text"}))):
        if body.get(key) not in harmless:
            raise Refused(f"{key} is not supported here", code="unsupported_parameter", param=key)
    line = {"id": 1, "prompt": ids, "text": True}
    for key, name in NUMBERS.items():
        if body.get(key) is not None:
            line[name] = body[key]
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    if most is not None:
        line["n"] = most
    stop = body.get("stop")
    if stop:
        line["stop_text"] = [stop] if isinstance(stop, str) else stop
    if body.get("ignore_eos"):
        line["ignore_eos"] = True
    if body.get("cache_prompt") is False:
        line["cache"] = False
    if body.get("timeout_s") is not None:
        line["timeout_s"] = body["timeout_s"]
    return line


class Parts:
    """Text as it comes, without its stop text; thoughts apart from the answer behind them."""

    def __init__(self, stops, split, thinks):
        self.stops, self.held = stops, ""
        self.at = "lead" if thinks else "begin" if split else "answer"

    def settled(self, marks):
        """What is held, up to a stop text, and less an end that may begin one of the marks."""
        found = [at for at in (self.held.find(m) for m in self.stops) if at >= 0]
        if found:
            return min(found)
        hold = max((n for m in marks for n in range(1, len(m)) if self.held.endswith(m[:n])), default=0)
        return len(self.held) - hold

    def take(self, n, keep=""):
        """n characters go out, but for those of keep at their end, which stay held."""
        piece = self.held[:n].rstrip(keep) if keep else self.held[:n]
        self.held = self.held[len(piece):]
        return piece

    def add(self, text, end=False, stopped=None):
        """Pieces that are final: (reasoning_content or content, text)."""
        self.held += text
        if stopped and stopped in self.held:
            self.held = self.held[:self.held.find(stopped)]
        if self.at == "begin":
            start = self.held.lstrip()
            if start.startswith("<think>"):
                self.at, self.held = "lead", start[len("<think>"):]
            elif end or not "<think>".startswith(start):
                self.at = "answer"
        if self.at == "lead":
            self.held = self.held.lstrip("\n")
            self.at = "thought" if self.held else "lead"
        if self.at == "thought":
            close = self.held.find("</think>")
            n = close if close >= 0 else len(self.held) if end else self.settled(self.stops + ["</think>"])
            yield "reasoning_content", self.take(n, "" if end and close < 0 else "\n")
            if close >= 0:
                self.at, self.held = "gap", self.held[self.held.find("</think>") + len("</think>"):]
        if self.at == "gap":
            self.held = self.held.lstrip("\n")
            self.at = "answer" if self.held else "gap"
        if self.at == "answer":
            yield "content", self.take(len(self.held) if end else self.settled(self.stops))


def usage_of(done):
    drafted, right = done["drafted_tokens"], done["accepted_tokens"]
    return {"prompt_tokens": done["prompt_tokens"], "completion_tokens": done["generated_tokens"],
            "total_tokens": done["prompt_tokens"] + done["generated_tokens"],
            "prompt_tokens_details": {"cached_tokens": done["cached_tokens"]},
            "completion_tokens_details": {"accepted_prediction_tokens": right, "rejected_prediction_tokens": drafted - right},
            "drafted_tokens": drafted, "accepted_tokens": right}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine, name, created = None, None, int(time.time())
    quiet = False

    def log_message(self, fmt, *args):
        if not self.quiet:
            sys.stderr.write(f"http.py: {self.address_string()} {fmt % args}\n")

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, e):
        kind = "invalid_request_error" if e.status < 500 else "server_error"
        self.reply(e.status, {"error": {"message": str(e), "type": kind, "param": e.param, "code": e.code}})

    def do_GET(self):
        try:
            if self.path in ("/health", "/v1/health"):
                self.engine.ask({"op": "stats"})
                return self.reply(200, {"status": "ok"})
            if self.path.rstrip("/") not in ("/v1/models", "/models") and not self.path.startswith("/v1/models/"):
                raise Refused(f"nothing at {self.path}", 404)
            stats = self.engine.ask({"op": "stats"})
            ago = stats["last_used_s"]
            model = {"id": self.name, "object": "model", "created": self.created, "owned_by": "dflash.c",
                     "last_used_ms": None if ago is None else int((time.time() - ago) * 1000),
                     "context_length": stats["ctx"], "max_tokens": stats["max_tokens"],
                     "parked": stats["models"]["target_parked"]}
            self.reply(200, model if self.path.startswith("/v1/models/") else {"object": "list", "data": [model]})
        except Refused as e:
            self.refuse(e)

    def do_POST(self):
        self.sent = False
        try:
            body = self.read_body()
            route = self.path.rstrip("/")
            if route in ("/v1/chat/completions", "/chat/completions"):
                return self.complete(body, True)
            if route in ("/v1/completions", "/completions"):
                return self.complete(body, False)
            raise Refused(f"nothing at {self.path}", 404)
        except Refused as e:
            if not self.sent:
                return self.refuse(e)
            self.event({"error": {"message": str(e), "code": e.code}})
            self.end_events()
        except (Gone, BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def read_body(self):
        try:
            n = int(self.headers.get("Content-Length", ""))
            if n < 0:
                raise ValueError
        except ValueError:
            self.close_connection = True
            raise Refused("Content-Length is missing, or no number of bytes", 411) from None
        if n > BODY_MOST:
            self.close_connection = True
            raise Refused(f"the body is too long (at most {BODY_MOST} bytes)", 413)
        try:
            body = json.loads(self.rfile.read(n))
            json.dumps(body, ensure_ascii=False).encode()   # half a surrogate pair is no text
        except RecursionError:
            raise Refused("bad JSON: too deep") from None
        except ValueError as e:
            raise Refused(f"bad JSON: {e}") from None
        if not isinstance(body, dict):
            raise Refused("expected a JSON object")
        return body

    # ---- one answer, whole or as it comes ----

    def prompt_of(self, body, chat):
        if chat:
            flags = thinking(body)
            return self.engine.encode(messages_to_lines(body.get("messages")), "--chat", *self.template, *flags)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self.engine.encode(prompt.encode(), "--special")
        if not isinstance(prompt, list) or not all(isinstance(x, int) for x in prompt):
            raise Refused("prompt: expected a text or an array of ids", param="prompt")
        return prompt

    def thinks(self, ids):
        """Does the prompt leave a thought open?"""
        begins, ends = self.engine.special("<think>"), self.engine.special("</think>")
        for x in reversed(ids[-8:]):
            if x == begins and begins is not None:
                return True
            if x == ends and ends is not None:
                return False
        return False

    def complete(self, body, chat):
        ids = self.prompt_of(body, chat)
        line = request_of(body, ids)
        if not ids:
            raise Refused("the prompt is empty")
        split = chat and self.engine.special("</think>") is not None
        parts = Parts(line.get("stop_text", []), split, split and self.thinks(ids))
        if not isinstance(body.get("stream_options") or {}, dict):
            raise Refused("stream_options: expected an object", param="stream_options")
        stream = bool(body.get("stream"))
        told = (body.get("stream_options") or {}).get("include_usage")
        head = {"id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex, "created": int(time.time()), "model": body.get("model") or self.name,
                "object": ("chat.completion" if chat else "text_completion") + (".chunk" if stream and chat else "")}
        texts = {"reasoning_content": "", "content": ""}
        for reply in self.engine.lines(line, self.connection):
            if "error" in reply:
                code = reply["error"]
                status = 400 if code in BAD else 503 if code == "target_parked" else 500
                name = "context_length_exceeded" if code == "context_overflow" else code
                raise Refused(reply.get("message") or code, status, name)
            done = reply.get("done")
            for kind, piece in parts.add(reply.get("text", ""), bool(done), reply.get("stop_text")):
                texts[kind] += piece
                if stream and piece:
                    self.chunk(head, chat, kind, piece, None)
            if done:
                break
        why = "stop" if reply["stop"] in ("stop", "text") else "length"
        if not stream:
            return self.reply(200, {**head, "choices": [self.choice(chat, texts, why)], "usage": usage_of(reply)})
        self.chunk(head, chat, None, None, why)
        if told:
            self.event({**head, "choices": [], "usage": usage_of(reply)})
        self.end_events()
        return None

    @staticmethod
    def choice(chat, texts, why):
        if not chat:
            return {"index": 0, "text": texts["content"], "finish_reason": why, "logprobs": None}
        message = {"role": "assistant", "content": texts["content"]}
        if texts["reasoning_content"]:
            message["reasoning_content"] = texts["reasoning_content"]
        return {"index": 0, "message": message, "finish_reason": why, "logprobs": None}

    # ---- server-sent events ----

    def event(self, body):
        if not self.sent:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-cache")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.sent, self.role = True, False
        self.write(b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n")

    def write(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end_events(self):
        self.event(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, head, chat, kind, piece, why):
        if not chat:
            return self.event({**head, "choices": [{"index": 0, "text": piece or "", "finish_reason": why, "logprobs": None}]})
        delta = {kind: piece} if kind else {}
        if not self.sent or not self.role:
            delta = {"role": "assistant", **delta}
        self.event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": why, "logprobs": None}]})
        self.role = True
        return None


def main():
    p = argparse.ArgumentParser(description="An HTTP front for dflash-generate --listen.")
    p.add_argument("--socket", required=True, help="where dflash-generate listens")
    p.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: this machine alone")
    p.add_argument("--port", type=int, default=8080, help="default 8080; 0: any, which is printed")
    p.add_argument("--name", help="the model's name; default: its file's. Requests may name any")
    p.add_argument("--model", help="a file with the target's tokenizer; default: the target, as the process names it")
    p.add_argument("--chat-template", help="a template by its name, whatever the model carries")
    p.add_argument("--tokenize", default="dflash-tokenize", help="the program that makes ids of text")
    p.add_argument("-q", action="store_true", help="no line a request")
    a = p.parse_args()
    Handler.engine = Engine(a.socket, a.tokenize, a.model)
    Handler.template = ["--chat-template", a.chat_template] if a.chat_template else []
    Handler.quiet = a.q
    try:
        target = Handler.engine.target()
    except Refused as e:
        sys.exit(f"http.py: {e}")
    Handler.name = a.name or os.path.basename(target).removesuffix(".gguf")
    server = ThreadingHTTPServer((a.host, a.port), Handler)
    server.daemon_threads = True
    print(f"http.py: {Handler.name} at http://{a.host}:{server.server_port}/v1", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
