//! What must hold for any bytes of a peer: for the fuzz target `grpc`, and the replay of its corpus. Not part of the interface.

use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use tonic::Status;

use super::frame::{Frame, FrameReader, RequestHead, ResponseHead, encode_call, encode_trailers};

/// Bytes of the front of a frame: its kind and length.
const FRONT: usize = 5;

/// Reads any bytes as the frames of a call. Returns how many frames there were, and whether the stream ended after the last of them.
///
/// # Panics
/// If what was decoded is not what its encoding decodes to.
#[must_use]
pub fn frames(bytes: &[u8], max_head: u32) -> (u32, bool) {
    let mut reader = FrameReader::new(bytes, max_head);
    let mut count = 0;
    let mut data = 0;
    loop {
        let Poll::Ready(read) = reader.poll_frame(&mut Context::from_waker(Waker::noop())) else {
            panic!("bytes that are there are not read");
        };
        match read {
            Ok(Some(frame)) => check(frame, &mut data),
            Ok(None) => return (count, true),
            Err(_) => return (count, false),
        }
        assert!(data <= bytes.len(), "more data than bytes");
        count += 1;
    }
}

fn check(frame: Frame, data: &mut usize) {
    let mut out = BytesMut::new();
    match frame {
        Frame::Head(bytes) => {
            if let Ok(head) = RequestHead::decode(bytes.clone()) {
                let path = head.path.path_and_query().map_or("", |path| path.as_str());
                // The path of a URI with a host begins behind it.
                if head.path.host().is_none()
                    && RequestHead::encode(path, &head.fields, &mut out).is_ok()
                {
                    let again = RequestHead::decode(out.split().freeze().split_off(FRONT));
                    assert_eq!(again.expect("what was encoded is decoded"), head);
                }
            }
            out.clear();
            if let Ok(head) = ResponseHead::decode(bytes)
                && ResponseHead::encode(head.status, &head.fields, &mut out).is_ok()
            {
                let again = ResponseHead::decode(out.split().freeze().split_off(FRONT));
                assert_eq!(again.expect("what was encoded is decoded"), head);
            }
        }
        Frame::Trailers(fields) => {
            // As the client does with the trailers of a response.
            let _status = Status::from_header_map(&fields);
            if encode_trailers(&fields, &mut out).is_ok() {
                let mut reader = FrameReader::new(&out[..], u32::MAX);
                let again = reader.poll_frame(&mut Context::from_waker(Waker::noop()));
                let Poll::Ready(Ok(Some(Frame::Trailers(again)))) = again else {
                    panic!("what was encoded is not decoded: {again:?}");
                };
                assert_eq!(again, fields);
            }
        }
        Frame::Data(bytes) => {
            assert!(!bytes.is_empty());
            *data += bytes.len();
        }
        Frame::Call(number) => {
            encode_call(number, &mut out);
            assert_eq!(out[FRONT..], number.to_be_bytes());
        }
        Frame::End => {}
    }
}
