"""Protects programs that use a client wrongly: each wrong call fails by itself at once, nothing hangs or is lost in silence.

The public methods are found by inspection, so that a new one is tried, too. A wrong argument raises in its own call, and the
client works afterwards; after close, and in a process that was forked, calls raise; a program that ends has sent its records.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kcli.client
from kcli.client import Admin, Consumer, OffsetAndMetadata, Producer, ShareConsumer
from kcli.client.errors import ClientError
from kcli.client.shell import admin as admin_shell
from kcli.client.value_checks import _annotations
from tests.server.live import LiveServer

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("misuse")]
PATIENCE_S = 60.0
AT = ("t", 0)
WRONG: list[Any] = [object(), b"zz", "zz", [None], [1], {AT: "x"}, [("t", "0")], [("t",)], [("t", 0, 1)], 1.5, None]
# Arguments that are right: by the name of the parameter, and what is right for it although it is in WRONG.
RIGHT: dict[str, Any] = {
    "topic": "t",
    "partition": AT,
    "partitions": [AT],
    "offset": 0,
    "offsets": {AT: OffsetAndMetadata(0)},
    "topics": ["t"],
    "timestamps": {AT: 1},
    "pattern": "t",
    "group": None,
    "table": [],
    "record": None,
    "listener": None,
}
ANYTHING = {"key", "value", "listener"}
TEXTS = {"topic", "pattern", "reason", "group_id", "transactional_id_pattern", "acks"}
UNTRIED = {"close", "execute", "wakeup"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("misuse"), "num.partitions=1", "group.initial.rebalance.delay.ms=0") as found:
        with Producer({"bootstrap.servers": f"127.0.0.1:{found.port}"}) as producer:
            producer.send_and_wait("t", b"v")
        yield found


def make(kind: str, server: LiveServer) -> Any:
    address = {"bootstrap.servers": f"127.0.0.1:{server.port}"}
    if kind in ("producer", "transactions"):
        settings = {"transactional.id": "misused"} if kind == "transactions" else {}
        producer = Producer({**address, **settings, "max.block.ms": 2000})
        if kind == "transactions":
            producer.init_transactions()
            producer.begin_transaction()
        return producer
    if kind == "consumer":
        consumer = Consumer({**address, "group.id": "misused", "auto.offset.reset": "earliest"})
        consumer.assign([AT])
        return consumer
    if kind == "share":
        share = ShareConsumer({**address, "group.id": "misused-share"})
        share.subscribe(["t"])
        return share
    return Admin(address)


KINDS = ("producer", "transactions", "consumer", "share", "admin")


def ended(function: Callable[[], object]) -> object:
    """Return what a call returns or raises, without waiting for ever."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert found, "the call has not ended"
    return found[0]


def public_methods(client: object) -> list[tuple[str, list[inspect.Parameter]]]:
    """Return the public methods with the parameters of a call."""
    found = []
    for name, method in inspect.getmembers(client, inspect.ismethod):
        if not name.startswith("_") and name not in UNTRIED:
            parameters = list(inspect.signature(method, follow_wrapped=False).parameters.values())
            if "args" in (one.name for one in parameters):  # an operation of the admin client
                parameters = list(inspect.signature(method.__wrapped__).parameters.values())
            found.append((name, [one for one in parameters if one.kind is not one.VAR_KEYWORD]))
    return found


def is_right(parameter: str, value: object) -> bool:
    """Return whether a value of WRONG is right for a parameter."""
    if parameter in ANYTHING:
        return True
    if parameter in ("timeout", "timestamp"):
        return value is None or (value == 1.5 and parameter == "timeout")
    if parameter in TEXTS:
        return value == "zz"
    if value is None:
        return parameter in ("headers", "partition", "on_delivery", "callback", "offsets")
    if parameter == "max_rows":
        return value == 1.5
    return parameter == "partitions" and value == {AT: "x"}  # its keys


def test_the_names_of_the_package_can_be_completed() -> None:
    """They are loaded when they are first used, and dir() did not have them."""
    assert set(kcli.client.__all__) <= set(dir(kcli.client))


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_a_wrong_argument_raises_in_its_own_call(server: LiveServer, kind: str) -> None:
    client = make(kind, server)
    for name, parameters in public_methods(client):
        needed = {one.name: RIGHT.get(one.name) for one in parameters if one.default is one.empty}
        for parameter in parameters:
            for wrong in WRONG:
                if is_right(parameter.name, wrong):
                    continue
                result = ended(lambda: getattr(client, name)(**(needed | {parameter.name: wrong})))  # noqa: B023
                expected = (TypeError, ValueError, ClientError)
                assert isinstance(result, expected), (name, parameter.name, wrong, result)
    check_works(client, server)
    assert ended(client.close) is None


def test_a_negative_partition_is_refused_by_both_ways_of_a_record(server: LiveServer) -> None:
    """Records of bytes without headers take a short way, on which -1 once was "any partition"."""
    with Producer({"bootstrap.servers": f"127.0.0.1:{server.port}"}) as producer:
        producer.send_and_wait("t", b"v")  # metadata is there: the short way is open
        for headers in ((), [("a", b"1")]):
            for partition in (-1, -7):
                with pytest.raises(ValueError, match=f"the partition {partition} is negative"):
                    producer.send("t", b"v", headers=headers, partition=partition)


def check_works(client: object, server: LiveServer) -> None:
    """The client does what it is for."""
    if isinstance(client, Producer):
        client.send_and_wait("t", b"v", headers={"a": b"1"})
    elif isinstance(client, Consumer):
        client.seek_to_beginning([AT])
        assert client.poll(PATIENCE_S)
    elif isinstance(client, ShareConsumer):
        client.subscribe(["t"])
        assert client.poll(0) is not None
    elif isinstance(client, Admin):
        assert "t" in client.list_topics()


OPERATIONS = [name for name, method in inspect.getmembers(Admin) if not name.startswith("_") and hasattr(method, "__wrapped__")]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_text_is_not_a_list_of_texts(name: str) -> None:
    """Admin.delete_topics("zz") deleted z: every parameter of every operation is held to its annotation."""
    operation = getattr(Admin, name).__wrapped__
    signature, annotations = _annotations(operation)
    assert set(annotations) == set(signature.parameters), "an annotation cannot be read when the program runs"
    class_words = ("Iterable", "Collection", "Sequence", "list", "Mapping", "dict")

    class Unasked:
        """Not an admin client: no operation may be executed."""

        def execute(self, operation: object) -> None:
            raise AssertionError("the call was made")

    for parameter in signature.parameters.values():
        if not str(parameter.annotation).startswith(class_words):
            continue
        for wrong in ("zz", b"zz", 5):
            needed = {one.name: object() for one in signature.parameters.values() if one.default is one.empty}
            with pytest.raises(TypeError, match=f"{name}: "):
                getattr(Admin, name)(Unasked(), **(needed | {parameter.name: wrong}))


def test_arguments_of_operations_are_named(server: LiveServer) -> None:
    with make("admin", server) as admin:
        with pytest.raises(TypeError, match="delete_topics: topics is a list of text or Uuid, not 'zz'"):
            admin.delete_topics("zz")
        with pytest.raises(TypeError, match="create_topics: "):
            admin.create_topics(kcli.client.NewTopic("one", 1))
        check_works(admin, server)
    assert admin_shell.Admin is Admin


# ------------------------------------------------------------------------------------------------ after close, two threads


@pytest.mark.parametrize("kind", KINDS)
def test_calls_after_close_end(server: LiveServer, kind: str) -> None:
    client = make(kind, server)
    client.close()
    client.close()
    for name, parameters in public_methods(client):
        needed = {one.name: RIGHT.get(one.name) for one in parameters if one.default is one.empty}
        result = ended(lambda: getattr(client, name)(**needed))  # noqa: B023
        waits = name.startswith(("send", "poll", "commit", "flush", "list", "describe", "create", "delete", "position"))
        assert isinstance(result, Exception) or not waits, (name, result)


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_a_second_thread_is_refused(server: LiveServer, kind: str) -> None:
    client = make(kind, server)
    with client._use.used():
        for name, parameters in public_methods(client):
            if name in ("poll", "commit_sync", "commit_async", "subscribe", "position"):
                needed = {one.name: RIGHT.get(one.name) for one in parameters if one.default is one.empty}
                result = ended(lambda: getattr(client, name)(**needed))  # noqa: B023
                assert isinstance(result, ClientError) and "another thread" in str(result), (name, result)
    client.close()


def test_threads_may_share_a_producer_and_an_admin(server: LiveServer) -> None:
    with make("producer", server) as producer, make("admin", server) as admin:
        threads = [threading.Thread(target=check_works, args=(one, server)) for one in (producer, admin) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


# ------------------------------------------------------------------------------------------------------- fork, at exit


def program(text: str, server: LiveServer) -> subprocess.CompletedProcess[str]:
    """Run a program that has `AT`, the settings of a client for the server."""
    head = f"AT = {{'bootstrap.servers': '127.0.0.1:{server.port}'}}\n"
    words = [sys.executable, "-c", head + textwrap.dedent(text)]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, cwd=Path(__file__).parents[2])


def count(server: LiveServer, topic: str) -> int:
    with Consumer({"bootstrap.servers": f"127.0.0.1:{server.port}"}) as consumer:
        return consumer.end_offsets([(topic, 0)])[topic, 0]  # type: ignore[index]


def test_a_client_is_refused_in_a_forked_process(server: LiveServer) -> None:
    """The parent's thread is not there: records were accepted and not sent, and flush waited for ever."""
    found = program(
        """
        import os
        from kcli.client import Admin, Consumer, Producer, ShareConsumer
        producer, admin, share = Producer(AT), Admin(AT), ShareConsumer(AT | {"group.id": "s"})
        consumer = Consumer(AT | {"auto.offset.reset": "earliest", "max.poll.records": 1})
        consumer.assign([("t", 0)])
        producer.send_and_wait("forked", b"of the parent")
        next(iter(consumer))
        producer._lock.acquire()  # as a thread of the parent may hold it
        child = os.fork()
        if child == 0:
            calls = [
                lambda: producer.send("forked", b"lost"),
                lambda: producer.send("other", b"lost"),
                lambda: producer.send_and_wait("forked", b"lost"),
                producer.flush,
                lambda: producer.partitions_for("forked"),
                lambda: consumer.poll(1),
                lambda: next(iter(consumer)),
                lambda: consumer.commit_sync({}),
                lambda: share.poll(1),
                admin.list_topics,
            ]
            for number, call in enumerate(calls):
                try:
                    print(number, call())
                except Exception as error:
                    assert "forked" in str(error), (number, error)
            for client in (producer, consumer, share, admin):
                client.close()
            print("child ended", flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        producer._lock.release()
        producer.send_and_wait("forked", b"of the parent")
        for client in (producer, consumer, share, admin):
            client.close()
        print("parent ended")
        """,
        server,
    )
    assert (found.stdout, found.stderr) == ("child ended\nparent ended\n", "")
    assert count(server, "forked") == 2


def test_an_asyncio_client_is_refused_in_a_forked_process(server: LiveServer) -> None:
    found = program(
        """
        import asyncio, os
        from kcli.client import AsyncAdmin, AsyncConsumer, AsyncProducer, AsyncShareConsumer

        async def main():
            producer, admin = AsyncProducer(AT), AsyncAdmin(AT)
            share, consumer = AsyncShareConsumer(AT | {"group.id": "s"}), AsyncConsumer(AT)
            consumer.assign([("t", 0)])
            await producer.send_and_wait("forked", b"of the parent")
            child = os.fork()
            if child == 0:
                for call in (producer.send, producer.flush, consumer.poll, share.poll, admin.list_topics):
                    try:
                        await (call("forked", b"lost") if call == producer.send else call())
                        print("no error of", call)
                    except Exception as error:
                        assert "forked" in str(error), error
                for client in (producer, consumer, share, admin):
                    closed = client.close()
                    if closed is not None:
                        await closed
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            for client in (producer, consumer, share):
                await client.close()
            admin.close()

        asyncio.run(main())
        """,
        server,
    )
    assert (found.stdout, found.stderr, found.returncode) == ("", "", 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "del producer"])
def test_a_program_that_ends_without_flush_has_sent_its_records(server: LiveServer, host: str, end: str) -> None:
    topic = f"ended-{host}-{len(end)}"
    found = program(
        f"""
        from kcli.client import Producer
        producer = Producer({{"bootstrap.servers": AT["bootstrap.servers"].replace("127.0.0.1", "{host}"), "linger.ms": 60000}})
        for number in range(1000):
            producer.send("{topic}", b"%d" % number)
        {end}
        """,
        server,
    )
    assert (found.returncode, found.stderr, count(server, topic)) == (0, "", 1000)


def test_records_that_cannot_be_sent_at_the_end_are_counted(server: LiveServer) -> None:
    found = program(
        """
        from kcli.client import Producer
        from kcli.client.shell import producer as shell
        shell.EXIT_S = 0.0
        producer = Producer(AT | {"linger.ms": 60000})
        producer.partitions_for("t")
        for number in range(3):
            producer.send("t", b"lost")
        """,
        server,
    )
    sentence = "3 records of a producer were lost: the program has ended before flush or close\n"
    # A request that was under way when the connection ended may have a line, too.
    assert found.returncode == 0 and found.stderr.count(sentence) == 1, found


def test_an_open_transaction_at_the_end_is_reported(server: LiveServer) -> None:
    found = program(
        """
        from kcli.client import Producer
        producer = Producer(AT | {"transactional.id": "ends"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"aborted")
        """,
        server,
    )
    assert found.returncode == 0 and "has ended before commit_transaction" in found.stderr


def test_an_event_loop_that_ends_before_the_records_are_sent_is_reported(server: LiveServer) -> None:
    """Nothing can send them any more: the event loop is closed."""
    found = program(
        """
        import asyncio
        from kcli.client import AsyncProducer

        async def main():
            producer = AsyncProducer(AT | {"linger.ms": 60000})
            await producer.partitions_for("t")
            for number in range(3):
                await producer.send("t", b"lost")

        asyncio.run(main())
        """,
        server,
    )
    sentence = "3 records of a producer were lost: the event loop has ended before flush or close of the AsyncProducer\n"
    # A request that was under way when the connection ended may have a line, too.
    assert found.returncode == 0 and found.stderr.count(sentence) == 1, found
