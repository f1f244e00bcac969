//! What nodes ask each other.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, RANGE};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use rackweave_disk::read_exact_at;
use rackweave_page::{Visit, guarded, whole};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::CHUNK;
use crate::counts::Counts;
use crate::digest::Digest;
use crate::directory::{Asked, Index, Refused, Reported};
use crate::service::{Found, Node};

/// The longest report, and the longest other request.
const LONGEST_REPORT: usize = 1 << 20;
const LONGEST: usize = 4 << 10;
/// Bytes that are read at a time for a reader.
const PIECE: u64 = 256 << 10;
/// How long a node waits here for a chunk that is about to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn router(node: &Arc<Node>, names: Vec<String>) -> Router {
    let router = Router::new()
        .route("/node/v1/blobs/{digest}", get(blob))
        .route("/node/v1/ask", post(ask))
        .route("/node/v1/report", post(report))
        .route("/node/v1/leave", post(leave))
        .route("/node/v1/size", post(size))
        .route("/node/v1/status", get(status))
        .route("/metrics", get(metrics))
        .fallback(async || refused(StatusCode::NOT_FOUND, "nodes serve /node/v1/ and /metrics"))
        .with_state(Arc::clone(node));
    guarded(router, names)
}

pub(crate) async fn metrics(State(node): State<Arc<Node>>) -> Response {
    let kind = (CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
    ([kind], node.counts.text()).into_response()
}

pub(crate) async fn status(State(node): State<Arc<Node>>) -> Response {
    json(&node.status())
}

fn json(value: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

fn refused(status: StatusCode, why: impl ToString) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], why.to_string()).into_response()
}

/// Reads what a node says, and answers from the directory.
async fn told<T: DeserializeOwned + HasPort>(
    node: &Node,
    visit: &Visit,
    body: Body,
    answer: impl FnOnce(&mut Index, SocketAddr, T) -> Result<Value, Refused>,
) -> Response {
    const NOT_HERE: &str = "this node does not keep the directory";
    if node.index().is_none() {
        return refused(StatusCode::NOT_FOUND, NOT_HERE);
    }
    let text = match whole(body, T::LONGEST).await {
        Ok(text) => text,
        Err(error) => return refused(error.status(), error),
    };
    let told: T = match serde_json::from_slice(&text) {
        Ok(told) => told,
        Err(error) => return refused(StatusCode::BAD_REQUEST, error),
    };
    let at = SocketAddr::new(visit.address(), told.port());
    let Some(mut index) = node.index() else {
        return refused(StatusCode::NOT_FOUND, NOT_HERE);
    };
    match answer(&mut index, at, told) {
        Ok(value) => json(&value),
        Err(error @ Refused::Full) => refused(StatusCode::SERVICE_UNAVAILABLE, error),
        Err(error) => refused(StatusCode::UNPROCESSABLE_ENTITY, error),
    }
}

/// What names the port of the node that says it.
trait HasPort {
    /// How long it can be.
    const LONGEST: usize = LONGEST;

    fn port(&self) -> u16;
}

impl HasPort for Asked {
    fn port(&self) -> u16 {
        self.about.port
    }
}

impl HasPort for Reported {
    const LONGEST: usize = LONGEST_REPORT;

    fn port(&self) -> u16 {
        self.port
    }
}

/// A node does not have a blob any more; without one, it ends.
#[derive(Debug, Deserialize)]
struct Left {
    port: u16,
    digest: Option<String>,
    #[serde(default)]
    size: u64,
}

impl HasPort for Left {
    fn port(&self) -> u16 {
        self.port
    }
}

#[derive(Debug, Deserialize)]
struct Sized {
    digest: String,
}

impl HasPort for Sized {
    fn port(&self) -> u16 {
        0
    }
}

async fn ask(
    State(node): State<Arc<Node>>,
    Extension(visit): Extension<Visit>,
    body: Body,
) -> Response {
    told(&node, &visit, body, |index, at, asked: Asked| {
        index.ask(node.clock.now(), at, &asked).map(|runs| serde_json::json!(runs))
    })
    .await
}

async fn report(
    State(node): State<Arc<Node>>,
    Extension(visit): Extension<Visit>,
    body: Body,
) -> Response {
    told(&node, &visit, body, |index, at, reported: Reported| {
        index.report(node.clock.now(), at, &reported).map(|()| Value::Null)
    })
    .await
}

async fn leave(
    State(node): State<Arc<Node>>,
    Extension(visit): Extension<Visit>,
    body: Body,
) -> Response {
    told(&node, &visit, body, |index, at, left: Left| {
        let blob = match &left.digest {
            Some(digest) => Some((digest.parse().map_err(|_| Refused::Digest)?, left.size)),
            None => None,
        };
        index.leave(at, blob);
        Ok(Value::Null)
    })
    .await
}

async fn size(
    State(node): State<Arc<Node>>,
    Extension(visit): Extension<Visit>,
    body: Body,
) -> Response {
    told(&node, &visit, body, |index, _, Sized { digest }| {
        let digest: Digest = digest.parse().map_err(|_| Refused::Digest)?;
        Ok(serde_json::json!(index.size(&digest)))
    })
    .await
}

async fn blob(
    State(node): State<Arc<Node>>,
    Path(digest): Path<String>,
    headers: HeaderMap,
) -> Response {
    let Ok(digest) = digest.parse::<Digest>() else {
        return refused(StatusCode::BAD_REQUEST, Refused::Digest);
    };
    let finder = Arc::clone(&node);
    let found = tokio::task::spawn_blocking(move || finder.find(&digest)).await;
    let Ok(Some(found)) = found else {
        return refused(StatusCode::NOT_FOUND, "this node does not have it");
    };
    let range = headers.get(RANGE).and_then(|it| it.to_str().ok());
    let Some(bytes) = range.and_then(|it| part(it, found.size())) else {
        return refused(StatusCode::RANGE_NOT_SATISFIABLE, "nodes ask for a part");
    };
    let range = format!("bytes {}-{}/{}", bytes.start, bytes.end - 1, found.size());
    let length = bytes.end - bytes.start;
    let body = send(node, found, bytes, Reader::Node);
    let headers = [(CONTENT_RANGE, range), (CONTENT_LENGTH, length.to_string())];
    (StatusCode::PARTIAL_CONTENT, headers, body).into_response()
}

/// The bytes that a `Range` names, of content of this size (RFC 9110, section 14.1.2); `None` if it names none, or several parts.
pub(crate) fn part(range: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = range.trim().strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| -> Option<u64> {
        let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    let bytes = match (first, last) {
        ("", last) => size.saturating_sub(number(last)?)..size,
        (first, "") => number(first)?..size,
        (first, last) => number(first)?..number(last)?.saturating_add(1).min(size),
    };
    (bytes.start < bytes.end && bytes.start < size).then_some(bytes)
}

impl Found {
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Stored(_, size) => *size,
            Self::Arriving(blob) => blob.size,
        }
    }
}

/// For whom content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Node,
    Runtime,
}

/// A body with these bytes. It breaks off if they do not arrive.
pub(crate) fn send(node: Arc<Node>, found: Found, bytes: Range<u64>, reader: Reader) -> Body {
    let (out, body) = rackweave_page::body();
    tokio::spawn(async move {
        let attempt = match &found {
            Found::Arriving(blob) => blob.attempt(),
            Found::Stored(..) => 0,
        };
        let mut next = bytes.start;
        while next < bytes.end {
            let end = (next / CHUNK + 1).saturating_mul(CHUNK).min(next + PIECE).min(bytes.end);
            // What a runtime gets is whole only if the blob is what its digest says.
            let is_checked = reader == Reader::Runtime && end == bytes.end;
            let piece = read(&found, next..end, attempt, reader, is_checked).await;
            let counter = match reader {
                Reader::Node => &node.counts.to_nodes,
                Reader::Runtime => &node.counts.to_runtimes,
            };
            Counts::add(counter, piece.as_ref().map_or(0, |it| it.len() as u64));
            let is_broken = piece.is_err();
            if out.send(piece).await.is_err() || is_broken {
                return;
            }
            next = end;
        }
    });
    body
}

async fn read(
    found: &Found,
    bytes: Range<u64>,
    attempt: u32,
    reader: Reader,
    is_checked: bool,
) -> io::Result<Bytes> {
    match found {
        Found::Stored(file, _) => {
            let file = Arc::clone(file);
            let read = tokio::task::spawn_blocking(move || {
                let mut buffer = vec![0; usize::try_from(bytes.end - bytes.start).unwrap_or(0)];
                read_exact_at(&*file, &mut buffer, bytes.start)?;
                Ok(Bytes::from(buffer))
            });
            read.await.map_err(io::Error::other)?
        }
        Found::Arriving(blob) => {
            let patience = match reader {
                Reader::Node => PATIENCE,
                // The fetch itself ends.
                Reader::Runtime => Duration::from_secs(24 * 3600),
            };
            blob.read(bytes, attempt, is_checked, patience).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_of_rfc_9110() {
        assert_eq!(part("bytes=0-0", 10), Some(0..1));
        assert_eq!(part("bytes=2-", 10), Some(2..10));
        assert_eq!(part("bytes=-3", 10), Some(7..10));
        assert_eq!(part("bytes=-30", 10), Some(0..10));
        assert_eq!(part("bytes=5-99", 10), Some(5..10));
        for wrong in [
            "",
            "bytes=",
            "bytes=-",
            "bytes=3-2",
            "bytes=10-",
            "bytes=0-1,3-4",
            "bytes=+1-2",
            "x=0-1",
        ] {
            assert_eq!(part(wrong, 10), None, "{wrong}");
        }
        assert_eq!(part("bytes=-0", 10), None);
        assert_eq!(part("bytes=0-18446744073709551615", 10), Some(0..10));
    }
}
