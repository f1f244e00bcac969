//! What is at which path, and for which requests.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rackweave_linux::random;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;

use super::digest::Digest;
use super::{Shown, ended, metrics};
use crate::status::ServerStatus;

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The interval of events.
const EACH: Duration = Duration::from_secs(1);
/// The most readers of events, which stay; the rest of the connections is for short requests.
const MOST_READERS: usize = 48;
/// The most complete statuses that are written at a time: they may be large.
const MOST_DUMPS: usize = 4;
/// Pieces in which complete statuses are written.
const PIECE: usize = 64 << 10;

/// What requests share.
#[derive(Debug)]
struct Shared {
    shown: Shown,
    names: Vec<String>,
    /// The last digest, with the status it is of, for readers that want the same one.
    digest: Mutex<Option<(Arc<ServerStatus>, Bytes)>>,
    readers: Arc<Semaphore>,
    dumps: Arc<Semaphore>,
}

pub(super) fn router(shown: Shown, names: Vec<String>) -> Router {
    let shared = Arc::new(Shared {
        shown,
        names,
        digest: Mutex::default(),
        readers: Arc::new(Semaphore::new(MOST_READERS)),
        dumps: Arc::new(Semaphore::new(MOST_DUMPS)),
    });
    Router::new()
        .route("/", get(page))
        .route("/events", get(events))
        .route("/status.json", get(status))
        .route("/clients/{address}", get(client))
        .route("/metrics", get(metrics))
        .fallback(|| async { refused(StatusCode::NOT_FOUND, "there is nothing here\n") })
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
}

fn refused(status: StatusCode, why: &'static str) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], why).into_response()
}

const NOT_YET: &str = "the server has just started\n";
const TOO_MANY: &str = "too many readers\n";

/// Refuses requests by foreign names, and adds the headers that all responses have.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let mut response = if is_own(request.headers(), &shared.names) {
        next.run(request).await
    } else {
        let why = "this is not a name of the server: use its address, or its name in --status\n";
        refused(StatusCode::MISDIRECTED_REQUEST, why)
    };
    let headers = response.headers_mut();
    let resource_policy = HeaderName::from_static("cross-origin-resource-policy");
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (resource_policy, "same-origin"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let nothing = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(nothing);
    response
}

/// Whether a request names this server as its host. A browser names the site whose script made the request, so that a foreign site
/// that has its name resolved to this host (DNS rebinding) is recognised.
fn is_own(headers: &HeaderMap, names: &[String]) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || port.starts_with(':') => {
                return address.parse::<Ipv6Addr>().is_ok();
            }
            _ => return false,
        },
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    name.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4())
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|own| name.eq_ignore_ascii_case(own))
}

async fn page() -> Response {
    let nonce = format!("{:032x}", random());
    let html = HTML.replace("NONCE", &nonce).replace("STYLE", STYLE).replace("SCRIPT", SCRIPT);
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    );
    let headers =
        [(CONTENT_TYPE, "text/html; charset=utf-8".to_owned()), (CONTENT_SECURITY_POLICY, policy)];
    (headers, html).into_response()
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

type Pieces = mpsc::Sender<io::Result<Bytes>>;

/// A body that is sent as it is made. Whoever makes it waits for the reader.
fn body() -> (Pieces, Body) {
    let (pieces, body) = mpsc::channel(1);
    (pieces, Body::from_stream(ReceiverStream::new(body)))
}

async fn events(State(shared): State<Arc<Shared>>) -> Response {
    let Ok(permit) = Arc::clone(&shared.readers).try_acquire_owned() else {
        return refused(StatusCode::SERVICE_UNAVAILABLE, TOO_MANY);
    };
    let (out, body) = body();
    tokio::spawn(report(shared, out, permit));
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// Sends the latest status each second, or when the reader has taken the last one, if it is slower.
async fn report(shared: Arc<Shared>, out: Pieces, _permit: OwnedSemaphorePermit) {
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
    fn only_the_servers_own_names_are_answered() {
        let names = ["images".to_owned(), "images.example".to_owned()];
        let is_own = |hosts: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(HOST, HeaderValue::from_static(host));
            }
            is_own(&headers, &names)
        };
        for host in [
            "127.0.0.1",
            "127.0.0.1:6780",
            "192.0.2.7:1",
            "localhost:6780",
            "LOCALHOST",
            "images:6780",
            "Images.Example:80",
            "images.example.",
            "[::1]",
            "[::1]:6780",
            "[2001:db8::1]:1",
        ] {
            assert!(is_own(&[host]), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:6780",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "images.evil.example",
            "[evil.example]",
            "[::1",
            "[::1]evil",
            "::1",
            "0x7f.1",
            "127.1",
            "images@evil.example",
            ":6780",
        ] {
            assert!(!is_own(&[host]), "{host}");
        }
        assert!(!is_own(&[]), "none");
        assert!(!is_own(&["localhost", "evil.example"]), "two");
    }

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
