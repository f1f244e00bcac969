"""A host with HomaModule's headers, written from their published layout (homa_wire.h) and from recorded packets alone: nothing of
Rackweave is used. Packets are sent and received by a raw socket of IP protocol 146. Whatever differs from the module ends the program.

    homa_peer.py client SERVER PORT LENGTH...   calls with messages of these lengths, and expects each of them back
    homa_peer.py server PORT COUNT              echoes this many requests, until all but one are acknowledged
"""

import socket
import struct
import sys
import time

PROTOCOL = 146
DATA, GRANT, RESEND, UNKNOWN, BUSY, CUTOFFS, NEED_ACK, ACK = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x18
# Source and destination port, sequence, 3 bytes of ack, type, doff, flags, window, checksum, urgent, id at the sender.
COMMON = struct.Struct("!HHI3xBBBHHHQ")
# Length of the message, of what is sent unasked, id and server port of a finished RPC, version of cutoffs, retransmit, segment's offset.
SEGMENT = struct.Struct("!IIQHHB3xi")
# Length of each kind's header.
SIZES = {DATA: 56, GRANT: 33, RESEND: 37, UNKNOWN: 28, BUSY: 28, CUTOFFS: 62, NEED_ACK: 28, ACK: 80}
FLAGS, URGENT = 6, 0xB97D
PACKET = 1424
# Less than the module sends unasked, so that a longer message needs grants.
UNASKED = 3 * PACKET
PATIENCE_S, ASK_AFTER_S = 20, 0.02
CLIENT_PORT = 0x8003


def fail(text):
    sys.exit("not HomaModule's: " + text)


class Host:
    def __init__(self, port):
        self.port = port
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, PROTOCOL)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.kinds = set()

    def send(self, to, kind, id, body=b"", sequence=0, priority=7):
        address, port = to
        # 14 words of a DATA header, and 5 in others.
        doff = 0xE0 if kind == DATA else 0x50
        head = COMMON.pack(self.port, port, sequence, kind, doff, FLAGS, 0, 0, URGENT, id)
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, priority << 5)
        self.socket.sendto(head + body, (address, 0))

    def send_data(self, to, id, message, start, end, again=False, finished=(0, 0)):
        for offset in range(start, end, PACKET):
            unasked = min(len(message), UNASKED)
            segment = SEGMENT.pack(len(message), unasked, *finished, 1, again, -1)
            payload = message[offset:min(offset + PACKET, end)]
            self.send(to, DATA, id, segment + payload, offset, 5)

    def grant(self, to, id, offset):
        self.send(to, GRANT, id, struct.pack("!IB", offset, 3))

    def receive(self, wait_s):
        """Returns sender, kind, id, and what follows the common header, of the next packet to this port; None after this time."""
        until = time.monotonic() + wait_s
        while (left := until - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                packet, (address, _) = self.socket.recvfrom(65535)
            except socket.timeout:
                return None
            front = (packet[0] & 15) * 4
            homa = packet[front:]
            source, destination, sequence, kind, doff, _, _, _, _, id = COMMON.unpack_from(homa)
            if destination != self.port:
                continue
            if kind not in SIZES:
                fail("type %#x" % kind)
            if len(homa) < SIZES[kind] or kind != DATA and len(homa) != SIZES[kind]:
                fail("%d bytes of type %#x" % (len(homa), kind))
            if packet[1] & 31 or packet[9] != PROTOCOL or len(packet) > 1500:
                fail("IP header %s" % packet[:20].hex())
            if kind == DATA and doff != 0xE0:
                fail("doff %#x of DATA" % doff)
            self.kinds.add(kind)
            return (address, source), kind, id, homa[28:], sequence
        return None


class Incoming:
    """A message that arrives."""

    def __init__(self, length):
        self.bytes = bytearray(length)
        self.missing = set(range(0, length, PACKET))

    def add(self, rest, sequence):
        length, unasked, _, _, _, _, offset = SEGMENT.unpack_from(rest)
        payload = rest[SEGMENT.size:]
        if offset != -1:
            fail("segment offset %d" % offset)
        if length != len(self.bytes) or not unasked or unasked > length:
            fail("message of %d bytes, %d unasked" % (length, unasked))
        if sequence % PACKET or len(payload) != min(PACKET, length - sequence):
            fail("%d bytes at %d of %d" % (len(payload), sequence, length))
        self.bytes[sequence:sequence + len(payload)] = payload
        self.missing.discard(sequence)

    @property
    def end(self):
        """The end of what has arrived without a gap."""
        return min(self.missing) if self.missing else len(self.bytes)


def finished_in(kind, id, rest):
    """The ids and server ports of finished RPCs that a packet names."""
    if kind == ACK:
        count, = struct.unpack_from("!H", rest)
        entries = [struct.unpack_from("!QH", rest, 2 + 10 * at) for at in range(count)]
        return [(id, None)] + entries
    if kind == DATA:
        return [SEGMENT.unpack_from(rest)[2:4]]
    return []


def call(host, server, id, message):
    host.send_data(server, id, message, 0, min(UNASKED, len(message)))
    sent, response, until = min(UNASKED, len(message)), None, time.monotonic() + PATIENCE_S
    while response is None or response.missing:
        if time.monotonic() > until:
            fail("no answer to %d bytes" % len(message))
        packet = host.receive(ASK_AFTER_S)
        if packet is None:
            # The module asks for a response of which it has nothing in the same way.
            start, length = (response.end, PACKET) if response else (0, 0xFFFFFFFF)
            host.send(server, RESEND, id, struct.pack("!IIB", start, length, 7))
            continue
        source, kind, its, rest, sequence = packet
        if source != server or its != id | 1:
            # What a call before had still on the way.
            continue
        if kind == DATA:
            length = SEGMENT.unpack_from(rest)[0]
            response = response or Incoming(length)
            response.add(rest, sequence)
            if response.missing:
                host.grant(server, id, min(length, response.end + 20 * PACKET))
        elif kind == GRANT:
            end = struct.unpack_from("!I", rest)[0]
            if end > len(message):
                fail("grant of %d of %d bytes" % (end, len(message)))
            host.send_data(server, id, message, sent, max(sent, end))
            sent = max(sent, end)
        elif kind == RESEND:
            start, length, _ = struct.unpack_from("!IIB", rest)
            end = min(len(message), start + length)
            host.send_data(server, id, message, start, end, again=True)
            sent = max(sent, end)
        elif kind == UNKNOWN:
            host.send_data(server, id, message, 0, sent, again=True)
    if response.bytes != message:
        fail("the response to %d bytes differs" % len(message))


def client(server, lengths):
    host = Host(CLIENT_PORT)
    for at, length in enumerate(lengths):
        id = 2 * at + 2
        call(host, server, id, bytes((at + 7 * byte) % 251 for byte in range(length)))
        # The server may free it, and asks whether it may if this is lost.
        host.send(server, ACK, id, struct.pack("!H", 0) + bytes(50))
    print("done, with", " ".join("%#x" % kind for kind in sorted(host.kinds)))


class Served:
    """An RPC of a client."""

    def __init__(self, client, length):
        self.client, self.request = client, Incoming(length)
        self.sent, self.active, self.acked = 0, time.monotonic(), False

    @property
    def unsent(self):
        return len(self.request.bytes) - self.sent


def server(port, count):
    host = Host(port)
    print("ready", flush=True)
    calls, until = {}, time.monotonic() + PATIENCE_S
    # A client that ends with its last response acknowledges all others.
    while True:
        acked = sum(call.acked for call in calls.values())
        if len(calls) == count and acked >= count - 1 and not any(call.unsent for call in calls.values()):
            break
        if time.monotonic() > until:
            fail("%d of %d calls acknowledged in time" % (acked, count))
        packet = host.receive(ASK_AFTER_S)
        now = time.monotonic()
        for id, call in calls.items():
            if not call.acked and now - call.active > ASK_AFTER_S:
                call.active = now
                kind = RESEND if call.request.missing else NEED_ACK
                body = struct.pack("!IIB", call.request.end, PACKET, 7) if kind == RESEND else b""
                host.send(call.client, kind, id | 1, body)
        if packet is None:
            continue
        source, kind, id, rest, sequence = packet
        if id & 1 or source[1] < 0x8000:
            fail("a client with id %d and port %d" % (id, source[1]))
        for other, its_port in finished_in(kind, id, rest):
            if its_port not in (None, port) and other:
                fail("a finished RPC at port %d" % its_port)
            if other in calls and calls[other].sent:
                calls[other].acked = True
        if kind == DATA and id not in calls:
            calls[id] = Served(source, SEGMENT.unpack_from(rest)[0])
        call = calls.get(id)
        if call is None:
            continue
        call.active = now
        message = call.request.bytes
        if kind == DATA and not call.sent:
            call.request.add(rest, sequence)
            if call.request.missing:
                host.grant(source, id | 1, min(len(message), call.request.end + 20 * PACKET))
            else:
                call.sent = min(UNASKED, len(message))
                host.send_data(source, id | 1, message, 0, call.sent)
        elif kind == GRANT:
            end = struct.unpack_from("!I", rest)[0]
            host.send_data(source, id | 1, message, call.sent, max(call.sent, end))
            call.sent = max(call.sent, end)
        elif kind == RESEND and call.sent:
            start, length, _ = struct.unpack_from("!IIB", rest)
            host.send_data(source, id | 1, message, start, min(call.sent, start + length), again=True)
        elif kind == RESEND:
            host.send(source, BUSY, id | 1)
    print("done, with", " ".join("%#x" % kind for kind in sorted(host.kinds)))


if __name__ == "__main__":
    if sys.argv[1] == "client":
        client((sys.argv[2], int(sys.argv[3])), [int(length) for length in sys.argv[4:]])
    else:
        server(int(sys.argv[2]), int(sys.argv[3]))
