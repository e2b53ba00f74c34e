"""Renders chat templates as transformers does, and knows which characters came from a client.

Runs inside the node's embedded interpreter; chat_template.c is its only caller. Templates come from
the model's file and messages from clients, so templates run in Jinja's immutable sandbox and
messages enter as data only, never as template text.

Provenance: every string of a request becomes a Text whose mask marks each character as the client's;
strings written in the template are marked as the template's. Text keeps the marks through the
operations that templates use. Whatever loses them (an operation nobody foresaw) yields a plain str,
and a plain str counts as the client's: marks may grow, they never get lost.
"""
import array
import datetime
import json
import re

import jinja2
import jinja2.compiler
import jinja2.exceptions
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.sandbox

# enum outcome in chat_template.c
RENDERED, REFUSED, UNSUPPORTED, NO_MEMORY = 0, 1, 2, 3

CLIENT, TEMPLATE = b"\x01", b"\x00"
CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
MESSAGE_BYTES = 500  # what fits into an err_info
PLAIN_ROLE = re.compile("[A-Za-z_]{1,32}", re.ASCII)


class Text(str):
    """A str with one mark a character. Without a mask all of it is the client's."""

    __slots__ = ("_mask",)

    def __new__(cls, value="", mask=None):
        self = str.__new__(cls, value)
        self._mask = CLIENT * len(self) if mask is None else mask
        return self

    def __str__(self):
        return self

    def _cut(self, begin, end):
        return Text(str.__getitem__(self, slice(begin, end)), self._mask[begin:end])

    def _same_length(self, changed):
        return Text(changed, self._mask if len(changed) == len(self) else None)

    def _in_order(self, pieces):
        """Marks for pieces of self that follow one another, with anything between them."""
        at, out = 0, []
        for piece in pieces:
            at = str.index(self, piece, at)
            out.append(self._cut(at, at + len(piece)))
            at += len(piece)
        return out

    def __add__(self, other):
        if not isinstance(other, str) or isinstance(other, jinja2.filters.Markup):
            return NotImplemented
        return Text(str.__add__(self, other), self._mask + mask_of(other))

    def __radd__(self, other):
        if not isinstance(other, str):
            return NotImplemented
        return Text(str.__add__(other, self), mask_of(other) + self._mask)

    def __mul__(self, n):
        return Text(str.__mul__(self, n), self._mask * n)

    __rmul__ = __mul__

    def __getitem__(self, key):
        mask = self._mask[key]
        return Text(str.__getitem__(self, key), mask if isinstance(mask, bytes) else bytes([mask]))

    def __iter__(self):
        for at in range(len(self)):
            yield self._cut(at, at + 1)

    def strip(self, chars=None):
        begin = len(self) - len(str.lstrip(self, chars))
        return self._cut(begin, begin + len(str.strip(self, chars)))

    def lstrip(self, chars=None):
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars=None):
        return self._cut(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix):
        return self._cut(len(prefix), len(self)) if str.startswith(self, prefix) else self

    def removesuffix(self, suffix):
        return self._cut(0, len(str.removesuffix(self, suffix)))

    def _between(self, pieces, separator):
        at, out = 0, []
        for piece in pieces:
            out.append(self._cut(at, at + len(piece)))
            at += len(piece) + len(separator)
        return out

    def split(self, sep=None, maxsplit=-1):
        pieces = str.split(self, sep, maxsplit)
        return self._in_order(pieces) if sep is None else self._between(pieces, sep)

    def rsplit(self, sep=None, maxsplit=-1):
        pieces = str.rsplit(self, sep, maxsplit)
        return self._in_order(pieces) if sep is None else self._between(pieces, sep)

    def splitlines(self, keepends=False):
        whole = self._between(str.splitlines(self, True), "")
        lengths = [len(line) for line in str.splitlines(self, keepends)]
        return [line._cut(0, n) for line, n in zip(whole, lengths)]

    def partition(self, sep):
        return tuple(self._between(str.partition(self, sep), ""))

    def rpartition(self, sep):
        return tuple(self._between(str.rpartition(self, sep), ""))

    def replace(self, old, new, count=-1):
        if not old:
            return Text(str.replace(self, old, new, count))
        return Text.join(as_text(new), Text.split(self, old, count))

    def join(self, items):
        parts = []
        for item in items:
            if not isinstance(item, str):
                raise TypeError("sequence item: expected str instance, %s found" % type(item).__name__)
            if parts:
                parts.append(self)
            parts.append(item)
        return concat(parts)

    def upper(self):
        return self._same_length(str.upper(self))

    def lower(self):
        return self._same_length(str.lower(self))

    def title(self):
        return self._same_length(str.title(self))

    def capitalize(self):
        return self._same_length(str.capitalize(self))


def mask_of(text):
    return text._mask if isinstance(text, Text) else CLIENT * len(text)


def as_text(value):
    return value if isinstance(value, Text) else Text(value)


def clean(value):
    """Text written by the template."""
    return Text(value, TEMPLATE * len(value))


def concat(parts):
    parts = list(parts)
    return Text("".join(parts), b"".join(map(mask_of, parts)))


def finalize(value):
    """What {{ value }} prints. Numbers and truth values cannot spell a control token."""
    if isinstance(value, Text):
        return value
    if value is None or isinstance(value, (bool, int, float, jinja2.Undefined)):
        return clean(str(value))
    return Text(str(value))


def concat_values(values):
    """The ~ operator."""
    return concat([finalize(value) for value in values])


@jinja2.pass_eval_context
def join_filter(eval_ctx, value, d=None, attribute=None):
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(eval_ctx.environment, attribute), value)
    separator = clean("") if d is None else finalize(d)
    return separator.join([finalize(item) for item in value])


def safe_filter(value):
    """Nothing is escaped here, so that safe text is the text itself."""
    return value if isinstance(value, Text) else jinja2.filters.Markup(value)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


class Generation(jinja2.ext.Extension):
    """{% generation %} blocks mark what a model wrote; for rendering they are transparent."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_render")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


class MarkingCodeGenerator(jinja2.compiler.CodeGenerator):
    """Writes each string of the template as a Text of the template's."""

    def _source_of(self, value):
        if isinstance(value, str):
            return "environment.clean(%r)" % str.__str__(value)
        if isinstance(value, (tuple, list)):
            inner = "".join(self._source_of(item) + ", " for item in value)
            return "(%s)" % inner if isinstance(value, tuple) else "[%s]" % inner
        if isinstance(value, dict):
            pairs = ("%s: %s" % (self._source_of(k), self._source_of(v)) for k, v in value.items())
            return "{%s}" % ", ".join(pairs)
        return str(value) if isinstance(value, float) else repr(value)

    def _output_const_repr(self, group):
        return self._source_of("".join(group))

    def visit_Const(self, node, frame):
        self.write(self._source_of(node.as_const(frame.eval_ctx)))

    def visit_TemplateData(self, node, frame):
        self.write(self._source_of(node.data))

    def visit_Concat(self, node, frame):
        self.write("environment.concat_values((")
        for arg in node.nodes:
            self.visit(arg, frame)
            self.write(", ")
        self.write("))")


class PlainEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    def __init__(self):
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
        )
        self.now_s = 0
        self.filters["tojson"] = tojson
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = self.strftime_now

    def strftime_now(self, format):
        utc = datetime.timezone.utc
        return datetime.datetime.fromtimestamp(self.now_s, utc).replace(tzinfo=None).strftime(format)


class MarkingEnvironment(PlainEnvironment):
    code_generator_class = MarkingCodeGenerator
    concat = staticmethod(concat)
    concat_values = staticmethod(concat_values)
    clean = staticmethod(clean)

    def __init__(self):
        super().__init__()
        self.finalize = finalize
        self.filters["join"] = join_filter
        self.filters["safe"] = safe_filter

    def strftime_now(self, format):
        # a format that is wholly the template's gives text that is wholly the template's
        text = super().strftime_now(format)
        return clean(text) if CLIENT not in mask_of(format) else Text(text)


def as_client_text(value):
    """The same JSON value with every string, keys too, marked as the client's."""
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, list):
        return [as_client_text(item) for item in value]
    if isinstance(value, dict):
        return {Text(key): as_client_text(item) for key, item in value.items()}
    return value


def mark_messages(messages):
    """Roles become part of control tokens in some templates (<|user|>), so they are the template's
    where they are mere words."""
    marked = as_client_text(messages)
    for message in marked:
        role = message.get("role") if isinstance(message, dict) else None
        if isinstance(role, str) and PLAIN_ROLE.fullmatch(role):
            message["role"] = clean(role)
    return marked


def flatten_parts(messages):
    for message in messages:
        if isinstance(message.get("content"), list):
            message["content"] = "\n".join(part["text"] for part in message["content"])


def append_tag(messages):
    message = messages[-1]
    if isinstance(message["content"], list):
        part = next(p for p in reversed(message["content"]) if "text" in p)
        part["text"] = part["text"] + CONTINUE_TAG
    else:
        message["content"] = message["content"] + CONTINUE_TAG


def cut_at_tag(text):
    """Ends the text where the last content ended; without the blanks before the tag if the template
    took the blank behind it."""
    at = text.rindex(CONTINUE_TAG.strip())
    kept = text[at : at + len(CONTINUE_TAG)] == CONTINUE_TAG
    return text[:at] if kept else text[:at].rstrip()


def byte_spans(text):
    """[begin, end) byte offsets of the client's runs, one after another."""
    spans, at, n_bytes = array.array("Q"), 0, 0
    mask = mask_of(text)
    while True:
        begin = mask.find(CLIENT, at)
        if begin < 0:
            return spans.tobytes()
        end = mask.find(TEMPLATE, begin)
        end = len(mask) if end < 0 else end
        n_bytes += len(str.__getitem__(text, slice(at, begin)).encode())
        spans.append(n_bytes)
        n_bytes += len(str.__getitem__(text, slice(begin, end)).encode())
        spans.append(n_bytes)
        at = end


def shorten(message):
    """As bytes for C: cut between characters, without NUL."""
    message = message.replace("\0", " ")
    return message.encode("utf-8", "replace")[:MESSAGE_BYTES].decode("utf-8", "ignore").encode()


class Template:
    def __init__(self, source, bos_token, eos_token):
        self.plain_env, self.marking_env = PlainEnvironment(), MarkingEnvironment()
        self.plain = self.plain_env.from_string(source)
        self.marking = self.marking_env.from_string(source)
        self.bos_token, self.eos_token = bos_token, eos_token

    def variables(self, request):
        messages, tools, kwargs, generation = request[:4]
        out = {"documents": None, **kwargs}
        out.update(
            messages=messages,
            tools=tools,
            add_generation_prompt=generation,
            bos_token=self.bos_token,
            eos_token=self.eos_token,
        )
        return out

    def render_plain(self, request, is_open, now_s):
        self.plain_env.now_s = now_s
        text = self.plain.render(self.variables(request))
        return cut_at_tag(text) if is_open else text

    def render_marked(self, request, is_open, now_s):
        messages, tools, kwargs, generation = request
        self.marking_env.now_s = now_s
        variables = self.variables(
            (mark_messages(messages), as_client_text(tools), as_client_text(kwargs), generation)
        )
        variables.update(bos_token=clean(self.bos_token), eos_token=clean(self.eos_token))
        text = self.marking.render(variables)
        return cut_at_tag(text) if is_open else text

    def spans(self, text, request, is_open, now_s):
        """Where the marked rendering is not the plain one, all text is taken for the client's: then
        the template's own control tokens are lost, but nobody can forge one."""
        try:
            marked = self.render_marked(request, is_open, now_s)
        except Exception:
            marked = None
        same = isinstance(marked, Text) and str.__eq__(marked, text)
        return byte_spans(marked if same else Text(text))

    def render(self, messages, tools, kwargs, generation, is_open, flatten, now_s, wants_spans):
        """-> (outcome, text or message, spans as uint64 pairs)"""
        try:
            messages, tools = json.loads(messages), json.loads(tools or b"null")
            kwargs = json.loads(kwargs or b"{}")
            for name in RESERVED:
                if name in kwargs:
                    return REFUSED, b"chat_template_kwargs: %s is reserved" % name.encode(), b""
            if flatten:
                flatten_parts(messages)
            if is_open:
                append_tag(messages)
            request = (messages, tools, kwargs, bool(generation))
            text = self.render_plain(request, is_open, now_s)
            spans = self.spans(text, request, is_open, now_s) if wants_spans else b""
            return RENDERED, text.encode(), spans
        except MemoryError:
            return NO_MEMORY, b"chat template: no memory", b""
        except Exception as e:
            if type(e) is jinja2.exceptions.TemplateError:
                return REFUSED, shorten(str(e.message)) or b"refused by the chat template", b""
            return UNSUPPORTED, shorten("chat template: %s: %s" % (type(e).__name__, e)), b""

    def wants_parts(self):
        """Whether a list of parts is walked, found out by trying: text comes out, and not as a
        printed list."""
        probe = "kvnode-probe"
        messages = [{"role": "user", "content": [{"type": "text", "text": probe}]}]
        for extra in (None, {"role": "assistant", "content": "x"}):
            request = (messages + ([extra] if extra else []), None, {}, extra is None)
            try:
                text = self.render_plain(request, False, 0)
            except Exception:
                continue
            return probe in text and "'text'" not in text and '"text"' not in text
        return False


def compile_template(source, bos_token, eos_token):
    """-> (outcome, Template or message)"""
    try:
        return RENDERED, Template(source.decode(), bos_token.decode(), eos_token.decode())
    except jinja2.exceptions.TemplateSyntaxError as e:
        return REFUSED, shorten("chat template: line %d: %s" % (e.lineno, e.message))
    except MemoryError:
        return NO_MEMORY, b"chat template: no memory"
    except Exception as e:
        return UNSUPPORTED, shorten("chat template: %s: %s" % (type(e).__name__, e))
