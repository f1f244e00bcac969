//! Frames on a stream: a kind, a length, and that many bytes.
//!
//! ```text
//! client: HEAD (version, flags, path, fields)    DATA* END
//! server: HEAD (version, flags, status, fields)  DATA* TRAILERS (flags, fields) | END
//! ```
//! A call whose request is complete at once travels as one message, and is answered by one:
//!
//! ```text
//! client: CALL (number) HEAD DATA* END           server: HEAD DATA* (TRAILERS | END | CALL (number))
//! ```
//! A response that ends with `CALL` continues over a stream that the client opens and begins with the same `CALL`. A
//! one-way message that consists only of `CALL` cancels the call.
//!
//! `DATA` holds gRPC's length-prefixed messages as tonic makes them, split anywhere. A stream that ends without
//! `END` or `TRAILERS` was cancelled. Numbers are big-endian.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use base64::Engine as _;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use http::{StatusCode, Uri};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;
use tonic::Status;

const VERSION: u8 = 1;
const HEAD: u8 = 1;
const DATA: u8 = 2;
const TRAILERS: u8 = 3;
const END: u8 = 4;
const CALL: u8 = 5;

/// The length of a frame's header: kind and length.
pub(super) const FRAME_HEADER: usize = 5;

/// The length of the number in a `CALL`.
pub(super) const CALL_BYTES: usize = 8;

/// Maximum number of fields of a head.
const MAX_FIELDS: usize = 1024;

/// Minimum and maximum room for one read.
const READ: (usize, usize) = (4 << 10, 256 << 10);

/// Fields that nearly every call has: one flag each.
const COMMON: [(HeaderName, &str); 3] = [
    (TE, "trailers"),
    (CONTENT_TYPE, "application/grpc"),
    (HeaderName::from_static("grpc-status"), "0"),
];

/// Why input is not valid in this protocol.
#[derive(Debug, thiserror::Error)]
pub(super) enum Malformed {
    #[error("the stream ended in the middle of a frame")]
    Truncated,
    #[error("the peer uses version {0} of this protocol, but only {VERSION} is supported")]
    Version(u8),
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    #[error("a head of {bytes} bytes exceeds the limit of {max}")]
    TooLong { bytes: u32, max: u32 },
    #[error("more than {MAX_FIELDS} metadata fields")]
    TooManyFields,
    #[error("a malformed head or malformed trailers")]
    Head,
    #[error("{0} is not allowed in this position")]
    Unexpected(&'static str),
}

impl From<Malformed> for io::Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(io::ErrorKind::InvalidData, malformed)
    }
}

/// The first frame of a request.
#[derive(Debug, PartialEq)]
pub(super) struct RequestHead {
    pub(super) path: Uri,
    pub(super) fields: HeaderMap,
}

/// The first frame of a response.
#[derive(Debug, PartialEq)]
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    pub(super) fields: HeaderMap,
}

/// One frame, or for `Data` the part of it that has arrived.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    /// It is not decoded yet, because its meaning depends on the direction.
    Head(Bytes),
    Data(Bytes),
    Trailers(HeaderMap),
    End,
    /// The number of a call.
    Call(u64),
}

impl RequestHead {
    pub(super) fn encode(path: &str, fields: &HeaderMap, out: &mut BytesMut) -> Result<(), Status> {
        frame(HEAD, out, |out| {
            out.put_u8(VERSION);
            let length = u16::try_from(path.len()).map_err(|_| too_long("the method's path"))?;
            out.put_u16(length);
            out.put_slice(path.as_bytes());
            encode_fields(fields, out)
        })
    }

    pub(super) fn decode(mut bytes: Bytes) -> Result<Self, Malformed> {
        version(&mut bytes)?;
        let length = bytes.try_get_u16().map_err(|_| Malformed::Head)?;
        let path = take(&mut bytes, usize::from(length))?;
        if !path.starts_with(b"/") {
            return Err(Malformed::Head);
        }
        let path = Uri::from_maybe_shared(path).map_err(|_| Malformed::Head)?;
        Ok(Self { path, fields: decode_fields(bytes)? })
    }
}

impl ResponseHead {
    pub(super) fn encode(
        status: StatusCode,
        fields: &HeaderMap,
        out: &mut BytesMut,
    ) -> Result<(), Status> {
        frame(HEAD, out, |out| {
            out.put_u8(VERSION);
            out.put_u16(status.as_u16());
            encode_fields(fields, out)
        })
    }

    pub(super) fn decode(mut bytes: Bytes) -> Result<Self, Malformed> {
        version(&mut bytes)?;
        let status = bytes.try_get_u16().map_err(|_| Malformed::Head)?;
        let status = StatusCode::from_u16(status).map_err(|_| Malformed::Head)?;
        Ok(Self { status, fields: decode_fields(bytes)? })
    }
}

pub(super) fn encode_trailers(fields: &HeaderMap, out: &mut BytesMut) -> Result<(), Status> {
    frame(TRAILERS, out, |out| encode_fields(fields, out))
}

pub(super) fn encode_end(out: &mut BytesMut) {
    out.put_u8(END);
    out.put_u32(0);
}

pub(super) fn encode_call(number: u64, out: &mut BytesMut) {
    out.put_u8(CALL);
    out.put_u32(CALL_BYTES as u32);
    out.put_u64(number);
}

/// Encodes the header of a `DATA` frame whose bytes are written after it. Longer pieces must be split first.
pub(super) fn encode_data(bytes: u32, out: &mut BytesMut) {
    out.put_u8(DATA);
    out.put_u32(bytes);
}

/// Appends a frame that `write` encodes. On an error the frame is removed completely.
fn frame(
    kind: u8,
    out: &mut BytesMut,
    content: impl FnOnce(&mut BytesMut) -> Result<(), Status>,
) -> Result<(), Status> {
    let start = out.len();
    out.put_u8(kind);
    out.put_u32(0);
    let length = content(out).and_then(|()| {
        u32::try_from(out.len() - start - FRAME_HEADER).map_err(|_| too_long("the metadata"))
    });
    match length {
        Ok(length) => {
            out[start + 1..start + FRAME_HEADER].copy_from_slice(&length.to_be_bytes());
            Ok(())
        }
        Err(status) => {
            out.truncate(start);
            Err(status)
        }
    }
}

fn encode_fields(fields: &HeaderMap, out: &mut BytesMut) -> Result<(), Status> {
    let mut flags = 0;
    for (bit, (name, value)) in COMMON.iter().enumerate() {
        let mut all = fields.get_all(name).iter();
        if all.next().is_some_and(|first| first == value) && all.next().is_none() {
            flags |= 1 << bit;
        }
    }
    out.put_u8(flags);
    for (name, value) in fields {
        let known = COMMON.iter().position(|(common, _)| common == name);
        if known.is_some_and(|bit| flags & 1 << bit != 0) {
            continue;
        }
        let name = name.as_str().as_bytes();
        out.put_u16(u16::try_from(name.len()).map_err(|_| too_long("the name of a field"))?);
        out.put_u32(u32::try_from(value.len()).map_err(|_| too_long("the value of a field"))?);
        out.put_slice(name);
        out.put_slice(value.as_bytes());
    }
    Ok(())
}

fn decode_fields(mut bytes: Bytes) -> Result<HeaderMap, Malformed> {
    let mut fields = HeaderMap::new();
    let flags = bytes.try_get_u8().map_err(|_| Malformed::Head)?;
    for (bit, (name, value)) in COMMON.iter().enumerate() {
        if flags & 1 << bit != 0 {
            fields.insert(name, HeaderValue::from_static(value));
        }
    }
    while bytes.has_remaining() {
        if fields.len() >= MAX_FIELDS {
            return Err(Malformed::TooManyFields);
        }
        let name = bytes.try_get_u16().map_err(|_| Malformed::Head)?;
        let value = bytes.try_get_u32().map_err(|_| Malformed::Head)?;
        let name = take(&mut bytes, usize::from(name))?;
        let value = take(&mut bytes, value as usize)?;
        let name = HeaderName::from_bytes(&name).map_err(|_| Malformed::Head)?;
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| Malformed::Head)?;
        // tonic panics if the details are not base64.
        if name == DETAILS && BASE64.decode(&value).is_err() {
            return Err(Malformed::Head);
        }
        fields.try_append(name, value).map_err(|_| Malformed::TooManyFields)?;
    }
    Ok(fields)
}

const DETAILS: &str = "grpc-status-details-bin";

/// The encoding that tonic uses, which accepts input with or without padding.
const BASE64: base64::engine::GeneralPurpose = base64::engine::GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    base64::engine::GeneralPurposeConfig::new()
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
);

fn version(bytes: &mut Bytes) -> Result<(), Malformed> {
    match bytes.try_get_u8() {
        Ok(VERSION) => Ok(()),
        Ok(other) => Err(Malformed::Version(other)),
        Err(_) => Err(Malformed::Head),
    }
}

fn take(bytes: &mut Bytes, length: usize) -> Result<Bytes, Malformed> {
    if length > bytes.len() { Err(Malformed::Head) } else { Ok(bytes.split_to(length)) }
}

fn too_long(what: &str) -> Status {
    Status::resource_exhausted(format!("{what} is too long to be sent"))
}

/// Reads frames from a stream.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    io: R,
    buffer: BytesMut,
    /// The remaining bytes of the current `DATA` frame.
    data_left: usize,
    max_head: u32,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(io: R, max_head: u32) -> Self {
        Self { io, buffer: BytesMut::new(), data_left: 0, max_head }
    }

    /// Creates a reader of `io`, preceded by bytes that have already arrived.
    pub(super) fn with_prefix(bytes: Bytes, io: R, max_head: u32) -> Self {
        let buffer = bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        Self { io, buffer, data_left: 0, max_head }
    }

    pub(super) const fn max_head(&self) -> u32 {
        self.max_head
    }

    /// Returns the next frame; `None` if the stream ends before one.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Frame>>> {
        loop {
            if let Some(frame) = self.parse()? {
                return Poll::Ready(Ok(Some(frame)));
            }
            if ready!(self.poll_fill(cx))? == 0 {
                let whole = self.buffer.is_empty() && self.data_left == 0;
                return Poll::Ready(if whole {
                    Ok(None)
                } else {
                    Err(Malformed::Truncated.into())
                });
            }
        }
    }

    pub(super) async fn frame(&mut self) -> io::Result<Option<Frame>> {
        std::future::poll_fn(|cx| self.poll_frame(cx)).await
    }

    /// Parses the header of the buffered frame, if enough of it has arrived.
    fn parse(&mut self) -> Result<Option<Frame>, Malformed> {
        loop {
            if self.data_left > 0 {
                if self.buffer.is_empty() {
                    return Ok(None);
                }
                let length = self.data_left.min(self.buffer.len());
                self.data_left -= length;
                return Ok(Some(Frame::Data(self.buffer.split_to(length).freeze())));
            }
            let Some(&[kind, a, b, c, d]) = self.buffer.first_chunk() else { return Ok(None) };
            let length = u32::from_be_bytes([a, b, c, d]);
            match kind {
                DATA => {
                    self.buffer.advance(FRAME_HEADER);
                    self.data_left = length as usize;
                }
                HEAD | TRAILERS => {
                    if length > self.max_head {
                        return Err(Malformed::TooLong { bytes: length, max: self.max_head });
                    }
                    if self.buffer.len() < FRAME_HEADER + length as usize {
                        return Ok(None);
                    }
                    self.buffer.advance(FRAME_HEADER);
                    let content = self.buffer.split_to(length as usize).freeze();
                    return Ok(Some(match kind {
                        HEAD => Frame::Head(content),
                        _ => Frame::Trailers(decode_fields(content)?),
                    }));
                }
                END if length == 0 => {
                    self.buffer.advance(FRAME_HEADER);
                    return Ok(Some(Frame::End));
                }
                CALL if length as usize == CALL_BYTES => {
                    if self.buffer.len() < FRAME_HEADER + CALL_BYTES {
                        return Ok(None);
                    }
                    self.buffer.advance(FRAME_HEADER);
                    return Ok(Some(Frame::Call(self.buffer.get_u64())));
                }
                END | CALL => return Err(Malformed::Head),
                other => return Err(Malformed::Kind(other)),
            }
        }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // At most what the frame's length states, within limits: a length is trusted only for bytes that have arrived.
        self.buffer.reserve(self.data_left.saturating_add(FRAME_HEADER).clamp(READ.0, READ.1));
        poll_read_buf(Pin::new(&mut self.io), cx, &mut self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const MAX_HEAD: u32 = 1 << 10;

    /// Returns all frames in these bytes, up to the first invalid one.
    fn read(bytes: &[u8]) -> (Vec<Frame>, io::Result<()>) {
        let bytes = Bytes::copy_from_slice(bytes);
        let mut reader = FrameReader::with_prefix(bytes, tokio::io::empty(), MAX_HEAD);
        let mut cx = Context::from_waker(Waker::noop());
        let mut frames = Vec::new();
        loop {
            match reader.poll_frame(&mut cx) {
                Poll::Ready(Ok(Some(frame))) => frames.push(frame),
                Poll::Ready(Ok(None)) => return (frames, Ok(())),
                Poll::Ready(Err(error)) => return (frames, Err(error)),
                Poll::Pending => unreachable!("all is there"),
            }
        }
    }

    fn fields(pairs: &[(&'static str, &'static [u8])]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for (name, value) in pairs {
            fields.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        fields
    }

    fn typical() -> BytesMut {
        let mut out = BytesMut::new();
        encode_call(7, &mut out);
        let head = fields(&[
            ("te", b"trailers"),
            ("content-type", b"application/grpc"),
            ("x-twice", b"1"),
            ("x-twice", b"\xe4\xf6"),
        ]);
        RequestHead::encode("/a.B/C", &head, &mut out).unwrap();
        encode_data(3, &mut out);
        out.extend_from_slice(b"abc");
        let details = fields(&[("grpc-status", b"5"), ("grpc-status-details-bin", b"AAE")]);
        encode_trailers(&details, &mut out).unwrap();
        encode_end(&mut out);
        out
    }

    #[test]
    fn what_was_written_is_read() {
        let (frames, end) = read(&typical());
        end.unwrap();
        let [
            Frame::Call(7),
            Frame::Head(head),
            Frame::Data(data),
            Frame::Trailers(trailers),
            Frame::End,
        ] = &frames[..]
        else {
            panic!("{frames:?}")
        };
        let head = RequestHead::decode(head.clone()).unwrap();
        assert_eq!(head.path, "/a.B/C");
        let twice: Vec<_> =
            head.fields.get_all("x-twice").iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(twice, [&b"1"[..], b"\xe4\xf6"]);
        assert_eq!(head.fields[TE], "trailers");
        assert_eq!(head.fields[CONTENT_TYPE], "application/grpc");
        assert_eq!(head.fields.len(), 4);
        assert_eq!(&data[..], b"abc");
        assert_eq!(trailers["grpc-status"], "5");
        // Common fields are encoded as one bit each.
        let mut out = BytesMut::new();
        let common = fields(&[("te", b"trailers"), ("content-type", b"application/grpc")]);
        RequestHead::encode("/a.B/C", &common, &mut out).unwrap();
        assert_eq!(out.len(), FRAME_HEADER + 1 + 2 + "/a.B/C".len() + 1);
    }

    #[test]
    fn a_response_head_round_trips() {
        let mut out = BytesMut::new();
        let sent = fields(&[("grpc-status", b"0")]);
        ResponseHead::encode(StatusCode::OK, &sent, &mut out).unwrap();
        let (frames, _) = read(&out);
        let Some(Frame::Head(bytes)) = frames.into_iter().next() else { panic!("a head") };
        let head = ResponseHead::decode(bytes).unwrap();
        assert_eq!(head, ResponseHead { status: StatusCode::OK, fields: sent });
    }

    #[test]
    fn lengths_are_not_trusted() {
        let reason = |bytes: &[u8]| read(bytes).1.unwrap_err().to_string();
        assert!(reason(&[HEAD, 255, 255, 255, 255, 1]).contains("limit of 1024"));
        assert!(reason(&[TRAILERS, 0, 0, 4, 1, 1]).contains("limit of 1024"));
        assert!(reason(&[DATA, 255, 255, 255, 255, 1]).contains("middle of a frame"));
        assert!(reason(&[END, 0, 0, 0, 1, 1]).contains("malformed"));
        assert!(reason(&[9, 0, 0, 0, 0]).contains("unknown kind 9"));
        // A field longer than its frame, and one at which tonic would panic.
        assert!(reason(&[TRAILERS, 0, 0, 0, 8, 0, 0, 1, 0, 0, 0, 9, b'x']).contains("malformed"));
        let mut out = BytesMut::new();
        let details = fields(&[("grpc-status-details-bin", b"!")]);
        encode_trailers(&details, &mut out).unwrap();
        assert!(reason(&out).contains("malformed"));
        assert!(RequestHead::decode(Bytes::from_static(&[2, 0, 0, 0])).is_err());
        assert!(RequestHead::decode(Bytes::from_static(&[1, 0, 2, b'x', b'y', 0])).is_err());
    }

    #[test]
    fn many_fields_are_refused() {
        let mut out = BytesMut::new();
        let mut many = HeaderMap::new();
        for _ in 0..=MAX_FIELDS {
            many.append("x", HeaderValue::from_static(""));
        }
        encode_fields(&many, &mut out).unwrap();
        assert!(matches!(decode_fields(out.freeze()), Err(Malformed::TooManyFields)));
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in vec(any::<u8>(), 0..300), at in any::<usize>(), to in any::<u8>()) {
            let mut flipped = typical();
            let at = at % flipped.len();
            flipped[at] = to;
            for input in [&bytes[..], &flipped] {
                for frame in read(input).0 {
                    if let Frame::Head(bytes) = frame {
                        let _ = RequestHead::decode(bytes.clone());
                        let _ = ResponseHead::decode(bytes);
                    }
                }
            }
        }
    }
}
