//! A body written as frames.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use http_body::Body;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tonic::Status;

use super::BoxError;
use super::frame::{self, ResponseHead};

/// Pieces are gathered into one write up to here.
const BATCH: usize = 32 << 10;

/// A piece at least so long is written from where it is, and not copied.
const BY_REFERENCE: usize = 8 << 10;

/// Why a body was not written to its end.
#[derive(Debug)]
pub(super) enum WriteError {
    /// The body itself failed.
    Body(Status),
    /// The stream does not take it: who reads from it learns why.
    Io,
}

/// More of a request or an answer than this goes over a stream.
const MESSAGE: usize = 4 << 20;

/// Where a stream of frames stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is written.
    Fresh,
    /// The last frame is whole.
    Whole,
    /// It may not be: nothing sensible can follow.
    Cut,
}

/// Puts frames onto a stream.
pub(super) struct FrameWriter<W> {
    io: W,
    state: State,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub(super) const fn new(io: W) -> Self {
        Self { io, state: State::Fresh }
    }

    /// Behind frames that went another way.
    pub(super) const fn resumes(&mut self) {
        self.state = State::Whole;
    }

    async fn write(&mut self, mut bytes: impl Buf) -> Result<(), WriteError> {
        self.state = State::Cut;
        self.io.write_all_buf(&mut bytes).await.map_err(|_| WriteError::Io)?;
        self.io.flush().await.map_err(|_| WriteError::Io)?;
        self.state = State::Whole;
        Ok(())
    }

    /// Writes `out` (the head) and then the body, with as few writes as its pieces' coming allows.
    pub(super) async fn body<B>(
        &mut self,
        mut out: BytesMut,
        mut body: Pin<&mut B>,
    ) -> Result<(), WriteError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        loop {
            let mut large = Bytes::new();
            let next = gather(&mut out, &mut large, body.as_mut(), BATCH).await;
            // What came before an error is written all the same.
            self.write(out.split().freeze().chain(large)).await?;
            if next? == Next::End {
                return Ok(());
            }
        }
    }

    /// Ends a response with a status, if it can be ended.
    pub(super) async fn fail(&mut self, status: &Status) -> Result<(), WriteError> {
        if self.state == State::Cut {
            return Err(WriteError::Io);
        }
        let out = failure(status, self.state == State::Fresh).map_err(WriteError::Body)?;
        self.write(out).await
    }

    pub(super) async fn shutdown(&mut self) -> io::Result<()> {
        self.io.shutdown().await
    }
}

/// The end of a response that has failed, with or without its head.
pub(super) fn failure(status: &Status, head: bool) -> Result<BytesMut, Status> {
    let mut out = BytesMut::new();
    if head {
        ResponseHead::encode(StatusCode::OK, &HeaderMap::new(), &mut out)?;
    }
    let mut fields = HeaderMap::new();
    status.add_header(&mut fields)?;
    frame::encode_trailers(&fields, &mut out)?;
    Ok(out)
}

/// Takes a body while its pieces come at once, up to [`MESSAGE`]: [`Next::End`] if that is all of it.
pub(super) async fn whole<B>(out: &mut BytesMut, mut body: Pin<&mut B>) -> Result<Next, WriteError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    loop {
        let before = out.len();
        let mut large = Bytes::new();
        let next = gather(out, &mut large, body.as_mut(), MESSAGE).await?;
        out.extend_from_slice(&large);
        if next == Next::End || out.len() == before || out.len() >= MESSAGE {
            return Ok(next);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    More,
    End,
}

/// Takes pieces of a body while they come at once, and there is room. The last may be large, and is to be written behind
/// `out`.
async fn gather<B>(
    out: &mut BytesMut,
    large: &mut Bytes,
    mut body: Pin<&mut B>,
    room: usize,
) -> Result<Next, WriteError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    while out.len() < room && large.is_empty() {
        let wait = out.is_empty();
        let frame = poll_fn(|cx| match body.as_mut().poll_frame(cx) {
            Poll::Pending if !wait => Poll::Ready(None),
            other => other.map(Some),
        });
        let Some(frame) = frame.await else { break };
        let Some(frame) = frame else {
            frame::encode_end(out);
            return Ok(Next::End);
        };
        let frame = frame.map_err(|error| WriteError::Body(Status::from_error(error.into())))?;
        match frame.into_data() {
            Ok(data) if data.is_empty() => {}
            Ok(data) => {
                let length = u32::try_from(data.len()).map_err(|_| {
                    WriteError::Body(Status::out_of_range("a piece of a message is over 4 GB long"))
                })?;
                frame::encode_data(length, out);
                if data.len() < BY_REFERENCE {
                    out.extend_from_slice(&data);
                } else {
                    *large = data;
                }
            }
            Err(frame) => {
                // Only data and trailers exist; of another kind there would be nothing to send.
                if let Ok(fields) = frame.into_trailers() {
                    frame::encode_trailers(&fields, out).map_err(WriteError::Body)?;
                    return Ok(Next::End);
                }
            }
        }
    }
    Ok(Next::More)
}
