//! Writes a body as frames.

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

/// Pieces are combined into one write up to this number of bytes.
const BATCH: usize = 32 << 10;

/// Pieces of at least this number of bytes are written without a copy.
const BY_REFERENCE: usize = 8 << 10;

/// Why a body was not written completely.
#[derive(Debug)]
pub(super) enum WriteError {
    /// The body itself failed.
    Body(Status),
    /// The stream accepts no more; its reader learns the reason.
    Io,
}

/// The longest request or response that is sent as one message, in bytes; a longer one uses a stream.
const MESSAGE: usize = 4 << 20;

/// The state of a stream of frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing has been written.
    Fresh,
    /// The last frame is complete.
    Whole,
    /// The last frame may be incomplete: nothing valid can follow.
    Cut,
}

/// Writes frames to a stream.
pub(super) struct FrameWriter<W> {
    io: W,
    state: State,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub(super) const fn new(io: W) -> Self {
        Self { io, state: State::Fresh }
    }

    /// Continues after frames that were sent in a message.
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

    /// Writes `out` (the head) and then the body, in as few writes as the arrival of its pieces allows.
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
            // Data before an error is still written.
            self.write(out.split().freeze().chain(large)).await?;
            if next? == Next::End {
                return Ok(());
            }
        }
    }

    /// Ends a response with a status, if that is still possible.
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

/// Encodes the end of a failed response, with or without its head.
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

/// Collects a body while its pieces are ready, up to [`MESSAGE`]: [`Next::End`] if that is all of it.
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

/// Collects pieces of a body while they are ready and there is room. The last may be large, and must be written after
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
                // Only data and trailers exist; other frames would carry nothing to send.
                if let Ok(fields) = frame.into_trailers() {
                    frame::encode_trailers(&fields, out).map_err(WriteError::Body)?;
                    return Ok(Next::End);
                }
            }
        }
    }
    Ok(Next::More)
}
