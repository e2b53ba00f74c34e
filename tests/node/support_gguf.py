"""GGUF files in Python: read, change, write, with the place of every field, so that a test can spoil exactly one.
Written after ggml's specification of the format (version 3, little endian), not after the node's reader."""
import struct

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
U32, STRING, ARRAY = 4, 8, 9


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def scalar(self, form):
        value, = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self):
        n = self.scalar("<Q")
        self.at += n
        return self.data[self.at - n:self.at]

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            element, n = self.scalar("<I"), self.scalar("<Q")
            return element, [self.value(element) for _ in range(n)]
        return self.scalar(SCALARS[kind])


class Gguf:
    """keys: name -> (type, value), arrays as (element type, list); tensors: [name, dims, type, offset]; data."""

    def __init__(self, path):
        r = Reader(path.read_bytes())
        assert r.scalar("4s") == b"GGUF" and r.scalar("<I") == 3
        n_tensors, n_keys = r.scalar("<Q"), r.scalar("<Q")
        self.keys, self.tensors, self.at = {}, [], {}
        for _ in range(n_keys):
            name = r.string().decode()
            kind = r.scalar("<I")
            self.keys[name] = (kind, r.value(kind))
        for _ in range(n_tensors):
            name = r.string().decode()
            dims = [r.scalar("<Q") for _ in range(r.scalar("<I"))]
            self.tensors.append([name, dims, r.scalar("<I"), r.scalar("<Q")])
        self.alignment = self.keys.get("general.alignment", (U32, 32))[1]
        self.data = r.data[-(-r.at // self.alignment) * self.alignment:]

    def array(self, key):
        """The elements of an array, to change."""
        return self.keys[key][1][1]

    def write(self):
        """The file's bytes; self.at then has the offset of every field by name."""
        out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys)))
        self.at = {"version": 4, "n_tensors": 8, "n_keys": 16}

        def string(s):
            out.extend(struct.pack("<Q", len(s)) + s)

        def value(kind, v):
            if kind == STRING:
                string(v)
            elif kind == ARRAY:
                out.extend(struct.pack("<IQ", v[0], len(v[1])))
                for element in v[1]:
                    value(v[0], element)
            else:
                out.extend(struct.pack(SCALARS[kind], v))

        for name, (kind, v) in self.keys.items():
            self.at[name] = len(out)
            string(name.encode())
            self.at[name + ":type"] = len(out)
            out.extend(struct.pack("<I", kind))
            self.at[name + ":value"] = len(out)
            value(kind, v)
        for name, dims, kind, offset in self.tensors:
            self.at[name] = len(out)
            string(name.encode())
            self.at[name + ":n_dims"] = len(out)
            out.extend(struct.pack("<I", len(dims)))
            self.at[name + ":dims"] = len(out)
            out.extend(struct.pack(f"<{len(dims)}Q", *dims))
            self.at[name + ":type"] = len(out)
            out.extend(struct.pack("<I", kind))
            self.at[name + ":offset"] = len(out)
            out.extend(struct.pack("<Q", offset))
        out.extend(bytes(-len(out) % self.alignment))
        self.at["data"] = len(out)
        out.extend(self.data)
        return out


def _byte_of_character():
    """GPT-2's table: printable Latin-1 stands for itself, each other byte for the next character from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    return {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(others)}}


BYTE_OF = _byte_of_character()


def token_bytes(piece):
    """The bytes that a byte-level BPE token stands for."""
    return bytes(BYTE_OF[c] for c in piece.decode())


def token_text(piece):
    """A token as /v1/completions names it in logprobs: its text, or bytes:\\xNN where it is no whole text."""
    data = token_bytes(piece)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{b:02x}" for b in data)
