"""Frisbee as its packets and images are described, without anything of Rackweave: a client, a server and a packer.

client OWN GROUP PORT OUT [DROP [STOP]]   fetches into OUT; ignores every DROPth block once; ends without a word after STOP chunks
server OWN GROUP PORT IMAGE [DROP]        serves IMAGE until a client leaves; skips every DROPth block once
pack DISK IMAGE                           makes an .ndz file of version 2, a chunk for each 512 KiB without zeros at 4 KiB
unpack IMAGE OUT                          writes what an .ndz file of version 1 to 4 says
ask HOST PORT IMAGE [STATUS]              asks a master server
"""
import random, socket, struct, sys, time, zlib

REQUEST, REPLY = 1, 2
JOIN, LEAVE, BLOCK, ASK, LEAVE2, PARTIAL, JOIN2 = range(1, 8)
CHUNK = 1 << 20


class Team:
    def __init__(self, own, group, port):
        self.own, self.to, self.wrong = socket.inet_aton(own), (group, int(port)), {}
        self.out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.out.bind((own, int(port)))
        self.out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, self.own)
        self.out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.sock.bind((group, int(port)))
        self.sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + self.own)
        self.sock.settimeout(0.09)

    def send(self, kind, subtype, body):
        self.out.sendto(struct.pack("<3I", kind, subtype, len(body)) + self.own + body, self.to)

    def receive(self):
        """The next message: source, type, subtype and body; None if nothing comes. Wrong ones are counted by their source."""
        while True:
            try:
                bytes, (host, port) = self.sock.recvfrom(2000)
            except TimeoutError:
                return None
            own, of = socket.inet_aton(host), bytes[12:16]
            if own == self.own:
                continue
            kind, subtype, length = struct.unpack_from("<3I", bytes.ljust(12))
            if len(bytes) < 16 + length or of != own or port != self.to[1]:
                self.wrong[host] = self.wrong.get(host, 0) + 1
                continue
            return host, kind, subtype, bytes[16:16 + length]


def client(own, group, port, out, drop=0, stop=0):
    drop, stop, team, number = int(drop), int(stop), Team(own, group, port), random.getrandbits(32)
    begun, joins, blocks = time.time(), 0, None
    while blocks is None:
        if time.time() >= begun + joins * 0.5:
            team.send(REQUEST, JOIN, struct.pack("<I", number))
            joins += 1
            assert joins < 60, "nobody answers"
        got = team.receive()
        if got and got[1:3] == (REPLY, JOIN):
            server, (blocks,) = got[0], struct.unpack("<i", got[3])
    assert blocks % 1024 == 0, "an image has chunks of 1 MiB"
    missing = {chunk: set(range(1024)) for chunk in range(blocks // 1024)}
    data, asked, dropped, seen = bytearray(blocks * 1024), {}, set(), 0
    order = list(missing)
    random.shuffle(order)
    idle = 0
    while missing:
        wanted = [chunk for chunk in order if chunk in missing][:2]
        for chunk in wanted:
            if chunk not in asked:
                team.send(REQUEST, ASK, struct.pack("<3i", chunk, 0, 1024))
                asked[chunk] = time.time()
            elif time.time() > asked[chunk] + 1:
                bits = sum(1 << block for block in missing[chunk])
                team.send(REQUEST, PARTIAL, struct.pack("<2i", chunk, 1) + bits.to_bytes(128, "little"))
                asked[chunk] = time.time()
        got = team.receive()
        idle = 0 if got else idle + 1
        assert idle < 300, "nothing comes"
        if not got or got[1:3] != (REQUEST, BLOCK) or got[0] != server:
            continue
        assert len(got[3]) == 8 + 1024, "a block is padded"
        chunk, block = struct.unpack_from("<2i", got[3])
        seen += 1
        if drop and seen % drop == 0 and (chunk, block) not in dropped:
            dropped.add((chunk, block))
            continue
        if block in missing.get(chunk, ()):
            data[chunk * CHUNK + block * 1024:chunk * CHUNK + block * 1024 + 1024] = got[3][8:]
            missing[chunk].discard(block)
            if not missing[chunk]:
                del missing[chunk]
                if stop and blocks // 1024 - len(missing) >= stop:
                    return
    assert server not in team.wrong, "messages that are shorter than they say, or not of their sender"
    open(out, "wb").write(data)
    elapsed = int(time.time() - begun)
    team.send(REQUEST, LEAVE2, struct.pack("<2I", number, elapsed) + struct.pack("<I", 1) + bytes(1024))
    print("done", joins, len(dropped), flush=True)


def server(own, group, port, image, drop=0):
    drop, team, image = int(drop), Team(own, group, port), open(image, "rb").read()
    chunks, queue, sent, skipped = len(image) // CHUNK, [], 0, set()
    print("ready", flush=True)
    team.sock.settimeout(0.001)
    while True:
        while got := team.receive():
            host, kind, subtype, body = got
            if kind != REQUEST or subtype == BLOCK:
                continue
            if subtype == JOIN:
                assert len(body) == 4
                team.send(REPLY, JOIN, struct.pack("<i", chunks * 1024))
            elif subtype == JOIN2:
                number, _, _, _, _ = struct.unpack("<IiiiQ", body)
                team.send(REPLY, JOIN2, struct.pack("<IiiiQ", number, 0, 1024, 1024, len(image)))
            elif subtype == ASK:
                chunk, block, count = struct.unpack("<3i", body)
                assert 0 <= chunk < chunks and 0 <= block and 0 < count and block + count <= 1024, "a bad request"
                queue += [(chunk, at) for at in range(block, block + count)]
            elif subtype == PARTIAL:
                chunk, bits = struct.unpack("<i", body[:4])[0], int.from_bytes(body[8:], "little")
                assert 0 <= chunk < chunks and len(body) == 136 and bits, "a bad request"
                queue += [(chunk, at) for at in range(1024) if bits >> at & 1]
            elif subtype in (LEAVE, LEAVE2):
                assert host not in team.wrong, "messages that are shorter than they say, or not of their sender"
                assert len(body) == (8 if subtype == LEAVE else 1036)
                print("done", subtype, len(skipped), flush=True)
                return
        for chunk, block in queue[:64]:
            sent += 1
            if drop and sent % drop == 0 and (chunk, block) not in skipped:
                skipped.add((chunk, block))
                continue
            at = chunk * CHUNK + block * 1024
            team.send(REQUEST, BLOCK, struct.pack("<2i", chunk, block) + image[at:at + 1024])
        del queue[:64]


def pack(disk, image):
    disk, made = open(disk, "rb").read(), []
    for first in range(0, len(disk), 1 << 19):
        regions, data = [], b""
        for at in range(first, min(len(disk), first + (1 << 19)), 4096):
            page = disk[at:at + 4096]
            if not any(page):
                continue
            data += page
            if regions and regions[-1][0] + regions[-1][1] == at // 512:
                regions[-1][1] += len(page) // 512
            else:
                regions.append([at // 512, len(page) // 512])
        if not regions:
            continue
        data = zlib.compress(data)
        header = struct.pack("<IIiiiiIIi", 0x6969696A, len(data), len(made), 0, 4096, len(regions),
                             first // 512, min(len(disk), first + (1 << 19)) // 512, 0)
        header += b"".join(struct.pack("<II", *region) for region in regions)
        # What pads a chunk means nothing, and is sent.
        made.append((header.ljust(4096, b"\0") + data).ljust(CHUNK, b"\xa5"))
    open(image, "wb").write(b"".join(made))


def unpack(image, out):
    image, disk = open(image, "rb").read(), bytearray()
    assert image and len(image) % CHUNK == 0, "not chunks of 1 MiB"
    for number in range(len(image) // CHUNK):
        chunk = image[number * CHUNK:][:CHUNK]
        magic, size, index, _, area, count = struct.unpack_from("<IIiiii", chunk)
        version = magic - 0x69696969 + 1
        assert version in (1, 2, 3, 4) and area == 4096 and index == number and count > 0, "a bad header"
        at = {1: 24, 4: 344}.get(version, 36)
        stream = zlib.decompressobj()
        data = stream.decompress(chunk[4096:4096 + size])
        assert stream.eof and not stream.unused_data, "not one zlib stream"
        short = {}
        if version > 1:
            first, last, relocations = struct.unpack_from("<IIi", chunk, 24)
            for kind, sector, _, length in struct.iter_unpack("<4I", chunk[at + 8 * count:][:16 * relocations]):
                assert kind == 6, "only the last sector's length is expected"
                short[sector] = length
        for start, length in struct.iter_unpack("<II", chunk[at:at + 8 * count]):
            assert length and (version == 1 or first <= start and start + length <= last), "a bad region"
            piece, data = data[:length * 512], data[length * 512:]
            assert len(piece) == length * 512, "too few data"
            if start + length - 1 in short:
                piece = piece[:len(piece) - 512 + short[start + length - 1]]
            disk.extend(bytes(max(0, start * 512 + len(piece) - len(disk))))
            disk[start * 512:start * 512 + len(piece)] = piece
        assert not data, "too many data"
    open(out, "wb").write(disk)


def ask(host, port, image, status=0):
    with socket.create_connection((host, int(port)), 5) as master:
        name = image.encode()
        master.sendall(struct.pack(">4si", b"V01", 1) + struct.pack(">IBBH256s", 0, 7, int(status), len(name), name))
        reply = b""
        while piece := master.recv(1000):
            reply += piece
    assert len(reply) == 8 + 280, len(reply)
    version, kind = struct.unpack_from(">4si", reply)
    assert version == b"V01\0" and kind == 2
    method, running, error, server, group, port, kind = struct.unpack_from(">BBHIIHH", reply, 8)
    high, low = struct.unpack_from(">II", reply, 8 + 16 + 256)
    dotted = lambda bits: socket.inet_ntoa(bits.to_bytes(4, "big"))
    print(error, method, running, dotted(server), dotted(group), port, high << 32 | low, kind)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
