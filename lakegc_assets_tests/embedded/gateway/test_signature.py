"""Signatures of the gateway: AWS's own examples, and everything that must be refused."""

from __future__ import annotations

import base64
import hashlib
from calendar import timegm
from time import strptime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.embedded.gateway.errors import S3Error
from lakegc_assets.embedded.gateway.payload import check_checksums, unpack
from lakegc_assets.embedded.gateway.signature import Incoming, Signed, verify
from lakegc_assets_tests.conformance.recorder import GATEWAY, conforms

SIGNATURES = conforms(
    GATEWAY,
    "Signature Version 4",
    client="boto3",
    checked="AWS's own examples; headers and presigned URLs; signed, unsigned and chunked payloads "
    "with trailers; wrong keys, changed requests, clocks; every checksum of S3",
)
# From "Authenticating Requests (AWS Signature Version 4)" in Amazon's documentation of S3.
ACCESS_KEY = "AKIAIOSFODNN7EXAMPLE"
SECRET_KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TIME = "20130524T000000Z"
NOW = timegm(strptime(TIME, "%Y%m%dT%H%M%SZ"))
EMPTY = hashlib.sha256(b"").hexdigest()
SCOPE = "20130524/us-east-1/s3/aws4_request"
HOST = "examplebucket.s3.amazonaws.com"


def signed_request(
    signature: str,
    method: str,
    path: str,
    query: str = "",
    payload: str = EMPTY,
    host: str = HOST,
    **headers: str,
) -> Incoming:
    named = {
        "host": host,
        "x-amz-content-sha256": payload,
        "x-amz-date": TIME,
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    names = ";".join(sorted(named))
    named["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{SCOPE},SignedHeaders={names},"
        f"Signature={signature}"
    )
    return Incoming(
        method,
        path.encode(),
        query.encode(),
        [(name.encode(), value.encode()) for name, value in named.items()],
    )


GET = signed_request(
    "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    "GET",
    "/test.txt",
    range="bytes=0-9",
)
PUT = signed_request(
    "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    "PUT",
    "/test%24file.text",
    payload="44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
    date="Fri, 24 May 2013 00:00:00 GMT",
    x_amz_storage_class="REDUCED_REDUNDANCY",
)
LIFECYCLE = signed_request(
    "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543", "GET", "/", "lifecycle"
)
LIST = signed_request(
    "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    "GET",
    "/",
    "max-keys=2&prefix=J",
)
PRESIGNED = Incoming(
    "GET",
    b"/test.txt",
    b"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524"
    b"%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400"
    b"&X-Amz-SignedHeaders=host&X-Amz-Signature="
    b"aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
    [(b"host", HOST.encode())],
)
STREAM_HEADERS = {
    "host": "s3.amazonaws.com",
    "x_amz_storage_class": "REDUCED_REDUNDANCY",
    "content_encoding": "aws-chunked",
    "x_amz_decoded_content_length": "66560",
}


@SIGNATURES
@pytest.mark.parametrize("incoming", [GET, PUT, LIFECYCLE, LIST, PRESIGNED])
def test_the_examples_of_aws_are_accepted(incoming: Incoming) -> None:
    found = verify(incoming, ACCESS_KEY, SECRET_KEY, NOW)
    assert found.presigned == (incoming is PRESIGNED)


# From "Signing and authenticating REST requests", with the bucket in the path.
OF_VERSION_2 = Incoming(
    "GET",
    b"/johnsmith/photos/puppy.jpg",
    b"AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D"
    b"&Expires=1175139620",
    [(b"host", b"s3.amazonaws.com")],
)


def test_the_example_of_aws_for_version_2_is_accepted() -> None:
    assert verify(OF_VERSION_2, ACCESS_KEY, SECRET_KEY, 1175139620).presigned


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (OF_VERSION_2._replace(method="PUT"), "SignatureDoesNotMatch"),
        (OF_VERSION_2._replace(path=b"/johnsmith/photos/kitten.jpg"), "SignatureDoesNotMatch"),
        (OF_VERSION_2._replace(query=OF_VERSION_2.query + b"&acl"), "SignatureDoesNotMatch"),
        (OF_VERSION_2._replace(query=OF_VERSION_2.query + b"9"), "SignatureDoesNotMatch"),
        (OF_VERSION_2._replace(query=b"a&a=1&" + OF_VERSION_2.query), "SignatureDoesNotMatch"),
        (
            OF_VERSION_2._replace(headers=[*OF_VERSION_2.headers, (b"x-amz-acl", b"public-read")]),
            "SignatureDoesNotMatch",
        ),
        (
            OF_VERSION_2._replace(query=OF_VERSION_2.query.replace(b"=AKIA", b"=AKIB")),
            "InvalidAccessKeyId",
        ),
        (OF_VERSION_2._replace(query=b"AWSAccessKeyId=x&Signature=y&Expires=-1"), "AccessDenied"),
        (OF_VERSION_2._replace(query=b"AWSAccessKeyId=x&Expires=1"), "AccessDenied"),
        (
            OF_VERSION_2._replace(query=OF_VERSION_2.query + b"9" * 5000),
            "AccessDenied",
        ),
    ],
)
def test_what_was_changed_since_it_was_presigned_by_version_2_is_refused(
    changed: Incoming, code: str
) -> None:
    with pytest.raises(S3Error) as caught:
        verify(changed, ACCESS_KEY, SECRET_KEY, 1175139620)
    assert caught.value.code == code


def test_a_url_of_version_2_expires() -> None:
    with pytest.raises(S3Error, match="Request has expired"):
        verify(OF_VERSION_2, ACCESS_KEY, SECRET_KEY, 1175139621)


def code_of(incoming: Incoming, now: float = NOW, secret_key: str = SECRET_KEY) -> str:
    with pytest.raises(S3Error) as caught:
        verify(incoming, ACCESS_KEY, secret_key, now)
    return caught.value.code


def with_header(incoming: Incoming, name: str, value: str | None) -> Incoming:
    kept = [pair for pair in incoming.headers if pair[0] != name.encode()]
    added = [] if value is None else [(name.encode(), value.encode())]
    return incoming._replace(headers=[*kept, *added])


def with_authorization(old: str, new: str) -> Incoming:
    value = GET.header("authorization") or ""
    assert old in value
    return with_header(GET, "authorization", value.replace(old, new))


@pytest.mark.parametrize(
    "changed",
    [
        GET._replace(method="PUT"),
        GET._replace(path=b"/test.txu"),
        GET._replace(query=b"acl"),
        GET._replace(query=b"X-Amz-Signature=&acl"),
        with_header(GET, "range", "bytes=0-99"),
        with_header(GET, "range", None),
        with_header(GET, "host", "elsewhere"),
        with_header(GET, "x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
        with_header(GET, "x-amz-date", "20130524T000001Z"),
        with_authorization("us-east-1", "eu-west-1"),
        with_authorization("Signature=f", "Signature=é"),
        with_authorization("Signature=f0", "Signature="),
        with_authorization("Signature=f0e8", "Signature=F0E8"),
        PRESIGNED._replace(path=b"/other.txt"),
        PRESIGNED._replace(query=PRESIGNED.query.replace(b"86400", b"86401")),
        PRESIGNED._replace(query=PRESIGNED.query + b"&acl"),
    ],
)
def test_what_was_changed_after_it_was_signed_is_refused(changed: Incoming) -> None:
    assert code_of(changed) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("incoming", [GET, PUT, PRESIGNED])
def test_another_secret_is_refused(incoming: Incoming) -> None:
    assert code_of(incoming, secret_key="other") == "SignatureDoesNotMatch"
    assert code_of(incoming, secret_key="") == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("incoming", "code"),
    [
        (with_header(GET, "authorization", None), "AccessDenied"),
        (with_header(GET, "authorization", "AWS AKIA:c2ln"), "InvalidRequest"),
        (with_header(GET, "authorization", "Basic QUs6c2VjcmV0"), "AuthorizationHeaderMalformed"),
        (with_header(GET, "authorization", ""), "AuthorizationHeaderMalformed"),
        (with_authorization(ACCESS_KEY, "AKIAOTHER"), "InvalidAccessKeyId"),
        (with_authorization(ACCESS_KEY, "ключ"), "InvalidAccessKeyId"),
        (with_authorization("/s3/", "/iam/"), "AuthorizationHeaderMalformed"),
        (with_authorization("20130524/", "20130525/"), "AuthorizationHeaderMalformed"),
        (with_authorization("SignedHeaders=host;", "SignedHeaders="), "AccessDenied"),
        (with_header(GET, "x-amz-meta-added", "later"), "AccessDenied"),
        (with_header(GET, "x-amz-date", "yesterday"), "AccessDenied"),
        (with_header(GET, "x-amz-date", None), "AccessDenied"),
        (with_header(GET, "x-amz-content-sha256", None), "InvalidRequest"),
        (
            PRESIGNED._replace(query=PRESIGNED.query.replace(b"Expires=86400", b"Expires=-1")),
            "AuthorizationQueryParametersError",
        ),
        (
            PRESIGNED._replace(query=PRESIGNED.query.replace(b"86400", b"604801")),
            "AuthorizationQueryParametersError",
        ),
        (
            PRESIGNED._replace(query=PRESIGNED.query.replace(b"X-Amz-SignedHeaders=host&", b"")),
            "AuthorizationQueryParametersError",
        ),
    ],
)
def test_what_is_not_signed_as_it_must_be_is_told_apart(incoming: Incoming, code: str) -> None:
    assert code_of(incoming) == code


TEXTS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([value for incoming in (GET, PUT) for _, value in incoming.headers]),
    st.dates().map(lambda day: day.strftime("%Y%m%dT000000Z").encode()),
    st.datetimes().map(lambda moment: moment.strftime("%a, %d %b %Y %X +1400").encode()),
)
NAMES = st.sampled_from([name for incoming in (GET, PUT) for name, _ in incoming.headers])
QUERIES = st.one_of(
    st.binary(max_size=40),
    st.lists(st.sampled_from(PRESIGNED.query.split(b"&"))).map(b"&".join),
    st.tuples(st.sampled_from(PRESIGNED.query.split(b"&")), TEXTS).map(
        lambda pair: PRESIGNED.query.replace(pair[0], pair[0].partition(b"=")[0] + b"=" + pair[1])
    ),
)


@given(
    method=st.sampled_from(["GET", "PUT"]),
    path=st.binary(max_size=20),
    query=QUERIES,
    headers=st.lists(st.tuples(NAMES, TEXTS)),
)
def test_whatever_is_sent_is_refused_in_s3s_words(
    method: str, path: bytes, query: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    with pytest.raises(S3Error) as caught:
        verify(Incoming(method, path, query, headers), ACCESS_KEY, SECRET_KEY, NOW)
    assert 400 <= caught.value.status < 404


def test_a_request_is_good_for_a_quarter_of_an_hour_either_way() -> None:
    for seconds in (-900, 900):
        verify(GET, ACCESS_KEY, SECRET_KEY, NOW + seconds)
    for seconds in (-901, 901):
        assert code_of(GET, NOW + seconds) == "RequestTimeTooSkewed"


def test_a_presigned_url_is_good_until_it_expires() -> None:
    for seconds in (-900, 86_400):
        verify(PRESIGNED, ACCESS_KEY, SECRET_KEY, NOW + seconds)
    for seconds in (-901, 86_401):
        assert code_of(PRESIGNED, NOW + seconds) == "AccessDenied"


def chunk(data: bytes, signature: str) -> bytes:
    end = b"\r\n" if data else b""
    return f"{len(data):x};chunk-signature={signature}\r\n".encode() + data + end


def stream(seed: str, payload: str, **headers: str) -> Signed:
    incoming = signed_request(
        seed, "PUT", "/examplebucket/chunkObject.txt", "", payload, **STREAM_HEADERS, **headers
    )
    return verify(incoming, ACCESS_KEY, SECRET_KEY, NOW)


CHUNKED = (
    chunk(b"a" * 65_536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648")
    + chunk(b"a" * 1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497")
    + chunk(b"", "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9")
)
LAST = CHUNKED.index(b"0;chunk-signature=b6c6")


def chunked() -> Signed:
    return stream(
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        content_length="66824",
    )


@SIGNATURES
def test_the_example_of_signed_chunks_is_unpacked() -> None:
    headers = {"x-amz-decoded-content-length": "66560"}
    assert unpack(CHUNKED + b"\r\n", chunked(), headers).data == b"a" * 66_560


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (CHUNKED.replace(b"aa", b"ab", 1), "SignatureDoesNotMatch"),
        (CHUNKED.replace(b"signature=0055", b"signature=0155"), "SignatureDoesNotMatch"),
        (CHUNKED.replace(b"signature=b6c6", b"signature=b6c7"), "SignatureDoesNotMatch"),
        (CHUNKED[: CHUNKED.index(b"400;")] + CHUNKED[LAST:], "SignatureDoesNotMatch"),
        (CHUNKED[:LAST], "IncompleteBody"),
        (CHUNKED[:1000], "IncompleteBody"),
        (CHUNKED.replace(b"\r\n400;", b"xx400;"), "IncompleteBody"),
        (b"", "IncompleteBody"),
        (b"0\r\n\r\n", "IncompleteBody"),
        (b"ffffffffffffffff" + CHUNKED[5:], "IncompleteBody"),
    ],
)
def test_chunks_that_were_changed_or_cut_are_refused(raw: bytes, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        unpack(raw, chunked(), {})
    assert caught.value.code == code


@given(raw=st.one_of(st.binary(), st.sampled_from(range(4)).map(lambda n: CHUNKED[: n * 22000])))
def test_whatever_comes_in_chunks_is_refused_in_s3s_words(raw: bytes) -> None:
    for signed in (chunked(), chunked()._replace(payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER")):
        with pytest.raises(S3Error):
            unpack(raw, signed, {"x-amz-trailer": "x-amz-checksum-crc32"})


def test_chunks_that_are_not_as_long_as_announced_are_refused() -> None:
    with pytest.raises(S3Error) as caught:
        unpack(CHUNKED, chunked(), {"x-amz-decoded-content-length": "66561"})
    assert caught.value.code == "IncompleteBody"


TRAILING = (
    chunk(b"a" * 65_536, "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2")
    + chunk(b"a" * 1024, "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7")
    + chunk(b"", "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992")
    + b"x-amz-checksum-crc32c:sOO8/Q==\n\r\n"
    b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
    b"\r\n\r\n"
)
TRAILER = {"x-amz-trailer": "x-amz-checksum-crc32c"}


def trailing() -> Signed:
    return stream(
        "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        x_amz_trailer="x-amz-checksum-crc32c",
    )


@SIGNATURES
def test_the_example_of_a_signed_trailer_is_unpacked() -> None:
    found = unpack(TRAILING, trailing(), TRAILER)
    assert found.data == b"a" * 66_560
    assert found.checksums == {"x-amz-checksum-crc32c": "sOO8/Q=="}


@pytest.mark.parametrize(
    ("raw", "headers", "code"),
    [
        (TRAILING.replace(b"sOO8", b"sOO9"), TRAILER, "SignatureDoesNotMatch"),
        (TRAILING.replace(b"d81f", b"d82f"), TRAILER, "SignatureDoesNotMatch"),
        (TRAILING[: TRAILING.index(b"x-amz-trailer")], TRAILER, "MalformedTrailerError"),
        (TRAILING[: TRAILING.index(b"x-amz-checksum")], TRAILER, "MalformedTrailerError"),
        (TRAILING, {}, "MalformedTrailerError"),
        (TRAILING + b"nonsense\r\n", TRAILER, "MalformedTrailerError"),
    ],
)
def test_trailers_that_are_not_as_signed_and_announced_are_refused(
    raw: bytes, headers: dict[str, str], code: str
) -> None:
    with pytest.raises(S3Error) as caught:
        unpack(raw, trailing(), headers)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("name", "checksum"),
    [
        ("crc32", 0xCBF43926.to_bytes(4, "big")),
        ("crc32c", 0xE3069283.to_bytes(4, "big")),
        ("crc64nvme", 0xAE8B14860A799888.to_bytes(8, "big")),
        ("sha1", hashlib.sha1(b"123456789").digest()),
        ("sha256", hashlib.sha256(b"123456789").digest()),
    ],
)
def test_checksums_are_those_of_their_standards(name: str, checksum: bytes) -> None:
    header = {f"x-amz-checksum-{name}": base64.b64encode(checksum).decode()}
    assert check_checksums(b"123456789", {**header, "x-amz-checksum-mode": "ENABLED"}) == header
    with pytest.raises(S3Error) as caught:
        check_checksums(b"123456788", header)
    assert caught.value.code == "BadDigest"


def test_an_unknown_checksum_is_not_taken_on_trust() -> None:
    with pytest.raises(S3Error) as caught:
        check_checksums(b"", {"x-amz-checksum-xxhash": "AA=="})
    assert caught.value.code == "NotImplemented"
