"""The analyst's own WebSocket against a peer that does not behave."""

import socket
import threading
import time

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from sfumato.owners.socket import Socket


@pytest.fixture
def peer():
    """Listens, shakes hands, then does what a test wants with the raw connection."""
    listening, threads = socket.create_server(("127.0.0.1", 0)), []

    def start(then):
        def serve():
            with listening.accept()[0] as line:
                protocol = ServerProtocol()
                while protocol.state is State.CONNECTING:
                    protocol.receive_data(line.recv(65536))
                    for request in protocol.events_received():
                        protocol.send_response(protocol.accept(request))
                        line.sendall(b"".join(protocol.data_to_send()))
                try:
                    then(line)
                except OSError:  # the client has had enough
                    pass

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        return Socket(f"ws://127.0.0.1:{listening.getsockname()[1]}", {}, None, 1 << 20, 20.0)

    yield start
    listening.close()
    for thread in threads:
        thread.join(20)


def frame(opcode, data, fin=True):
    return Frame(opcode, data, fin).serialize(mask=False)


def listen(line):
    """Until the client hangs up."""
    while line.recv(65536):
        pass


def test_messages_come_whole_and_in_order_whatever_the_pieces(peer):
    def send(line):
        whole = frame(Opcode.BINARY, b"one") + frame(Opcode.BINARY, b"tw", fin=False) + frame(Opcode.PING, b"there?")
        for byte in whole + frame(Opcode.CONT, b"o") + frame(Opcode.TEXT, b"three"):
            line.sendall(bytes([byte]))
        listen(line)

    with peer(send) as client:
        assert [client.recv(20.0) for _ in range(3)] == [b"one", b"two", "three"]


@pytest.mark.parametrize("endless", [frame(Opcode.CONT, b"", fin=False) * 1000, frame(Opcode.PING, b"") * 1000])
def test_a_peer_that_never_stops_and_never_ends_a_message_is_given_up_in_time(peer, endless):
    def flood(line):
        line.sendall(frame(Opcode.BINARY, b"", fin=False))
        while True:
            line.sendall(endless)

    with peer(flood) as client:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            client.recv(0.5)
        assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("goodbye", [frame(Opcode.CLOSE, b""), b""])
def test_an_end_is_an_end(peer, goodbye):
    with peer(lambda line: line.sendall(goodbye)) as client, pytest.raises(ConnectionError):
        client.recv(20.0)


def test_a_message_beyond_the_limit_is_refused(peer):
    def send(line):
        line.sendall(frame(Opcode.BINARY, bytes(2 << 20)))
        listen(line)

    with peer(send) as client, pytest.raises(ConnectionError):
        client.recv(20.0)
