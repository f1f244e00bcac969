//! What is at which path, and for which requests.

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use rackweave_page::{
    Bounds, Party, Pieces, Places, Visit, body, document, ended, guarded, refused,
};
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval};

use super::digest::Digest;
use super::{Shown, metrics};
use crate::status::ServerStatus;

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The interval of events.
const EACH: Duration = Duration::from_secs(1);
/// Readers of events stay. The oldest makes room for another, and the rest of the connections is for short requests.
const READERS: Bounds = Bounds { most: 48, of_one: 12, kept: 0 };
/// The most complete statuses that are written at a time: they may be large.
const MOST_DUMPS: usize = 4;
/// Pieces in which complete statuses are written.
const PIECE: usize = 64 << 10;

/// What requests share.
#[derive(Debug)]
struct Shared {
    shown: Shown,
    /// The last digest, with the status it is of, for readers that want the same one.
    digest: Mutex<Option<(Arc<ServerStatus>, Bytes)>>,
    readers: Places<Party>,
    dumps: Arc<Semaphore>,
}

pub(super) fn router(shown: Shown, names: Vec<String>) -> Router {
    let shared = Arc::new(Shared {
        shown,
        digest: Mutex::default(),
        readers: Places::new(READERS),
        dumps: Arc::new(Semaphore::new(MOST_DUMPS)),
    });
    let router = Router::new()
        .route("/", get(page))
        .route("/events", get(events))
        .route("/status.json", get(status))
        .route("/clients/{address}", get(client))
        .route("/metrics", get(metrics))
        .fallback(|| async { refused(StatusCode::NOT_FOUND, "there is nothing here\n") })
        .with_state(shared);
    guarded(router, names)
}

const NOT_YET: &str = "the server has just started\n";
const TOO_MANY: &str = "too many readers\n";

async fn page() -> Response {
    document(HTML, STYLE, SCRIPT)
}

impl Shared {
    fn current(&self) -> Option<Arc<ServerStatus>> {
        self.shown.borrow().clone()
    }

    /// Returns the digest of a status in JSON.
    fn digest(&self, status: &Arc<ServerStatus>) -> Bytes {
        let last = self.digest.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        if let Some((of, json)) = last
            && Arc::ptr_eq(&of, status)
        {
            return json;
        }
        // Maps with keys that are no strings are what cannot be written, and there is none.
        let json = Bytes::from(serde_json::to_vec(&Digest::new(status)).unwrap_or_default());
        let next = Some((Arc::clone(status), json.clone()));
        *self.digest.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = next;
        json
    }
}

async fn events(State(shared): State<Arc<Shared>>, Extension(visit): Extension<Visit>) -> Response {
    let place = visit.take(&shared.readers);
    let (out, body) = body();
    tokio::spawn(async move {
        tokio::select! {
            () = report(shared, out) => {}
            () = place.evicted() => {}
        }
    });
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// Sends the latest status each second, or when the reader has taken the last one, if it is slower.
async fn report(shared: Arc<Shared>, out: Pieces) {
    let mut shown = shared.shown.clone();
    let mut end = pin!(ended(shown.clone()));
    let mut tick = interval(EACH);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A reader that loses the connection tries again after this time.
    if out.send(Ok(Bytes::from_static(b"retry: 2000\n\n"))).await.is_err() {
        return;
    }
    tokio::select! {
        _ = shown.wait_for(Option::is_some) => {}
        () = out.closed() => return,
    }
    loop {
        let is_last = tokio::select! {
            biased;
            () = &mut end => true,
            () = out.closed() => return,
            _ = tick.tick() => false,
        };
        let Some(status) = shared.current() else { return };
        let json = shared.digest(&status);
        let name = if is_last { "event: end\n" } else { "" };
        let event = [name.as_bytes(), b"data: ", &json, b"\n\n"].concat();
        drop((status, json));
        if out.send(Ok(event.into())).await.is_err() || is_last {
            return;
        }
    }
}

const JSON: [(HeaderName, &str); 1] = [(CONTENT_TYPE, "application/json")];

async fn status(State(shared): State<Arc<Shared>>) -> Response {
    let Some(status) = shared.current() else {
        return refused(StatusCode::SERVICE_UNAVAILABLE, NOT_YET);
    };
    let Ok(permit) = Arc::clone(&shared.dumps).try_acquire_owned() else {
        return refused(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY);
    };
    let (out, body) = body();
    tokio::task::spawn_blocking(move || {
        let mut writer = io::BufWriter::with_capacity(PIECE, Channel(out));
        // A reader that has gone needs no more.
        let _ = serde_json::to_writer(&mut writer, &*status).map(|()| writer.flush());
        drop(permit);
    });
    (JSON, body).into_response()
}

/// Writes into a body, and waits while its reader is slow.
struct Channel(Pieces);

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        self.0.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn client(State(shared): State<Arc<Shared>>, Path(address): Path<Ipv4Addr>) -> Response {
    let status = shared.current();
    let found = status.iter().flat_map(|it| &it.clients).find(|it| it.address == address);
    match found.and_then(|client| serde_json::to_vec(client).ok()) {
        Some(json) => (JSON, json).into_response(),
        None => refused(StatusCode::NOT_FOUND, "there is no such client\n"),
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    match shared.current() {
        Some(status) => {
            ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::text(&status)).into_response()
        }
        None => refused(StatusCode::SERVICE_UNAVAILABLE, NOT_YET),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_document() {
        for part in [STYLE, SCRIPT] {
            assert!(!part.contains("NONCE") && !part.contains("SCRIPT") && !part.contains("</"));
        }
        assert!(!STYLE.contains("url("));
        for html in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!SCRIPT.contains(html), "{html}");
        }
        for remote in ["src=", "href=\"http", "@import"] {
            assert!(!HTML.contains(remote), "{remote}");
        }
        let handler = |word: &&str| word.starts_with("on") && word.contains('=');
        assert_eq!(HTML.split_whitespace().find(handler), None, "the policy forbids handlers here");
    }
}
