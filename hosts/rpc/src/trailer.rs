//! The trailer that this library adds to messages: a few bytes after the application's. The receiver can remove them
//! without copying, and the sender can often append them in place.
//!
//! A request ends with the microseconds until its deadline (32 bits, little-endian; 0: none) and a zero
//! byte; a response or one-way message ends with one byte. Streams carry only the application's bytes.

use bytes::{Bytes, BytesMut};

/// The number of bytes after a request.
pub(crate) const REQUEST_BYTES: usize = 5;

/// The number of bytes after a response or a one-way message.
pub(crate) const ANSWER_BYTES: usize = 1;

/// The kind of a response, which is its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// The response of the application.
    Answer = 0,
    /// The application dropped the request.
    Unanswered = 1,
    /// Too many requests wait; the application has not seen it.
    Full = 2,
    /// No server takes requests; the application has not seen it.
    NotServing = 3,
    /// The node shuts down; the application has not seen it.
    Stopping = 4,
    /// The request waited longer than its client does; the application has not seen it.
    Expired = 5,
}

impl Status {
    const ALL: [Self; 6] = [
        Self::Answer,
        Self::Unanswered,
        Self::Full,
        Self::NotServing,
        Self::Stopping,
        Self::Expired,
    ];
}

/// Appends to bytes, in place if there is no other owner.
fn append(bytes: Bytes, trailer: &[u8]) -> Bytes {
    match bytes.try_into_mut() {
        Ok(mut own) => {
            own.extend_from_slice(trailer);
            own.freeze()
        }
        Err(shared) => {
            let mut own = BytesMut::with_capacity(shared.len() + trailer.len());
            own.extend_from_slice(&shared);
            own.extend_from_slice(trailer);
            own.freeze()
        }
    }
}

pub(crate) fn request(bytes: Bytes, left_us: Option<u32>) -> Bytes {
    let [a, b, c, d] = left_us.map_or(0, |us| us.max(1)).to_le_bytes();
    append(bytes, &[a, b, c, d, 0])
}

pub(crate) fn answer(bytes: Bytes, status: Status) -> Bytes {
    append(bytes, &[status as u8])
}

/// Splits a request into the application's bytes and the microseconds left.
pub(crate) fn read_request(bytes: &Bytes) -> Option<(Bytes, Option<u32>)> {
    let (body, [a, b, c, d, 0]) = bytes.split_last_chunk::<REQUEST_BYTES>()? else { return None };
    let left = u32::from_le_bytes([*a, *b, *c, *d]);
    Some((bytes.slice(..body.len()), (left > 0).then_some(left)))
}

/// Splits a response or one-way message into the application's bytes and its kind.
pub(crate) fn read_answer(bytes: &Bytes) -> Option<(Bytes, Status)> {
    let (status, body) = bytes.split_last()?;
    let status = *Status::ALL.get(usize::from(*status))?;
    Some((bytes.slice(..body.len()), status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_cut_off_again() {
        for body in [Bytes::new(), Bytes::from_static(b"x"), Bytes::from(vec![7; 100_000])] {
            for left in [None, Some(1), Some(u32::MAX)] {
                let read = read_request(&request(body.clone(), left));
                assert_eq!(read, Some((body.clone(), left)));
            }
            for status in Status::ALL {
                assert_eq!(
                    read_answer(&answer(body.clone(), status)),
                    Some((body.clone(), status))
                );
            }
        }
    }

    #[test]
    fn a_buffer_with_room_is_not_copied() {
        let mut body = Vec::with_capacity(1000);
        body.resize(900, 1);
        let place = body.as_ptr();
        assert_eq!(request(Bytes::from(body), None).as_ptr(), place);
    }

    #[test]
    fn what_others_send_is_no_message() {
        for wrong in [&b""[..], b"1234", b"12345"] {
            assert_eq!(read_request(&Bytes::copy_from_slice(wrong)), None);
        }
        assert_eq!(read_answer(&Bytes::new()), None);
        assert_eq!(read_answer(&Bytes::from_static(&[6])), None);
    }
}
