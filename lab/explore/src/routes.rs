//! What is at which path, and for which requests.
//!
//! All paths begin with the page's token, a random number, so that other accounts of this machine read nothing either.
//!
//! | path | content |
//! |---|---|
//! | `/` | the page: HTML, style and script in one document that loads nothing else |
//! | `/events` | server-sent events: what `/state.json` has, when it changes |
//! | `/state.json` | the state of the lanes |
//! | `/session.json` | what stays the same until the next start: fabric, parameters, what is set |
//! | `/scenario.toml`, `/summary.json` | of the lane `?lane=N`: its scenario, and its results once it has ended |
//! | `/trace.json`, `/trace.csv` | the last trace |
//! | `POST /start`, `/control`, `/trace` | change the session; they need the page's token |

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use rackweave_page::{
    Bounds, Party, Pieces, Places, Visit, body, document, guarded, refused, whole,
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::session::{Refusal, Session};
use crate::trace;

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The least time between two events.
const EACH: Duration = Duration::from_millis(100);
/// Readers of events: a page each. The oldest makes room for another.
const READERS: Bounds = Bounds { most: 12, of_one: 12, kept: 0 };
/// The longest body of a request.
const MOST_BODY: usize = 64 << 10;
/// The header with the page's token.
const TOKEN: HeaderName = HeaderName::from_static("x-rackweave-token");

#[derive(Debug)]
struct Page {
    session: Arc<Session>,
    token: String,
    readers: Places<Party>,
}

pub(crate) fn router(session: Arc<Session>, token: String) -> Router {
    let readers = Places::new(READERS);
    // Every account of the machine reaches the port, and only whoever reads the command's output has the address.
    let secret = token.clone();
    let at = |path: &str| format!("/{secret}{path}");
    let page = Arc::new(Page { session, token, readers });
    let router = Router::new()
        .route(&at("/"), get(index))
        .route(&at("/events"), get(events))
        .route(&at("/state.json"), get(state))
        .route(&at("/session.json"), get(session_json))
        .route(&at("/scenario.toml"), get(toml))
        .route(&at("/summary.json"), get(summary))
        .route(&at("/trace.json"), get(trace_json))
        .route(&at("/trace.csv"), get(trace_csv))
        .route(&at("/start"), post(start))
        .route(&at("/control"), post(control))
        .route(&at("/trace"), post(take_trace))
        // Whoever has the address is no stranger.
        .route_layer(middleware::from_fn(known))
        .fallback(|| async {
            refused(
                StatusCode::NOT_FOUND,
                "there is nothing here: open the address that `rackweave explore` prints\n",
            )
        })
        .with_state(page);
    guarded(router, Vec::new())
}

async fn known(Extension(visit): Extension<Visit>, request: Request, next: Next) -> Response {
    visit.proves("page");
    next.run(request).await
}

type Shared = State<Arc<Page>>;

const JSON: [(HeaderName, &str); 1] = [(CONTENT_TYPE, "application/json")];

async fn index(State(page): Shared) -> Response {
    document(&HTML.replace("TOKEN", &page.token), STYLE, SCRIPT)
}

async fn state(State(page): Shared) -> Response {
    (JSON, page.session.shown().to_string()).into_response()
}

async fn session_json(State(page): Shared) -> Response {
    (JSON, page.session.described().to_string()).into_response()
}

/// The lane of `?lane=N`, or the first one.
fn lane(query: Option<&str>) -> usize {
    let given = query.and_then(|query| query.strip_prefix("lane="));
    given.map_or(0, |number| number.parse().unwrap_or(usize::MAX))
}

const NOT_YET: &str = "there is none yet\n";

async fn toml(State(page): Shared, RawQuery(query): RawQuery) -> Response {
    let Some((name, text)) = page.session.toml(lane(query.as_deref())) else {
        return refused(StatusCode::NOT_FOUND, NOT_YET);
    };
    let headers = [
        (CONTENT_TYPE, "application/toml".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    (headers, text).into_response()
}

async fn summary(State(page): Shared, RawQuery(query): RawQuery) -> Response {
    match page.session.summary(lane(query.as_deref())) {
        Some(text) => (JSON, text).into_response(),
        None => refused(StatusCode::NOT_FOUND, NOT_YET),
    }
}

async fn trace_json(State(page): Shared) -> Response {
    let traced = page.session.traced();
    match traced.and_then(|(trace, _)| serde_json::to_vec(&*trace).ok()) {
        Some(json) => (JSON, json).into_response(),
        None => refused(StatusCode::NOT_FOUND, NOT_YET),
    }
}

async fn trace_csv(State(page): Shared) -> Response {
    let traced = page.session.traced();
    match traced.and_then(|(trace, names)| trace::csv(&trace, &names).ok()) {
        Some(csv) => {
            let headers = [
                (CONTENT_TYPE, "text/csv; charset=utf-8"),
                (CONTENT_DISPOSITION, "attachment; filename=\"trace.csv\""),
            ];
            (headers, csv).into_response()
        }
        None => refused(StatusCode::NOT_FOUND, NOT_YET),
    }
}

async fn events(State(page): Shared, Extension(visit): Extension<Visit>) -> Response {
    let place = visit.take(&page.readers);
    let (out, body) = body();
    let changes = page.session.changes();
    tokio::spawn(async move {
        tokio::select! {
            () = report(&page.session, changes, out) => {}
            () = place.evicted() => {}
        }
    });
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// Sends the state whenever it has changed and the reader has taken the last one.
async fn report(session: &Session, mut changes: watch::Receiver<u64>, out: Pieces) {
    // A reader that loses the connection tries again after this time.
    if out.send(Ok("retry: 2000\n\n".into())).await.is_err() {
        return;
    }
    loop {
        changes.borrow_and_update();
        let event = format!("data: {}\n\n", session.shown());
        if out.send(Ok(event.into())).await.is_err() {
            return;
        }
        sleep(EACH).await;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = out.closed() => return,
            // A trace has no events of its own.
            () = sleep(Duration::from_secs(1)) => {}
        }
    }
}

/// Whether a request may change the session: it has the page's token, which no other site can read, and comes from the page.
fn is_own(headers: &HeaderMap, token: &str) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let has_token = text(TOKEN).is_some_and(|given| {
        given.len() == token.len()
            && given.bytes().zip(token.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    });
    let host = text(HOST).unwrap_or_default();
    let is_same = text(ORIGIN).is_none_or(|origin| origin == format!("http://{host}"));
    let site = text(HeaderName::from_static("sec-fetch-site"));
    has_token && is_same && site.is_none_or(|site| site == "same-origin")
}

/// Reads the body of a request that changes the session.
async fn read<T: DeserializeOwned>(page: &Page, request: Request) -> Result<T, Response> {
    if !is_own(request.headers(), &page.token) {
        return Err(refused(StatusCode::FORBIDDEN, "only the page itself may ask for this\n"));
    }
    let bytes = whole(request.into_body(), MOST_BODY).await;
    let bytes = bytes.map_err(|error| (error.status(), format!("{error}\n")).into_response())?;
    serde_json::from_slice(&bytes)
        .map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response())
}

fn answer(done: Result<(), Refusal>) -> Response {
    match done {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(Refusal(why)) => (StatusCode::UNPROCESSABLE_ENTITY, why).into_response(),
    }
}

/// Does what may take a while, such as to end the lanes, on another thread.
async fn apart(
    page: Arc<Page>,
    what: impl FnOnce(&Arc<Session>) -> Result<(), Refusal> + Send + 'static,
) -> Response {
    let done = tokio::task::spawn_blocking(move || what(&page.session)).await;
    answer(done.unwrap_or_else(|_| Err(Refusal("this is a bug in Rackweave".to_owned()))))
}

async fn start(State(page): Shared, request: Request) -> Response {
    match read(&page, request).await {
        Ok(asked) => apart(page, move |session| session.start(asked)).await,
        Err(refusal) => refusal,
    }
}

async fn control(State(page): Shared, request: Request) -> Response {
    match read(&page, request).await {
        Ok(asked) => answer(page.session.control(&asked)),
        Err(refusal) => refusal,
    }
}

async fn take_trace(State(page): Shared, request: Request) -> Response {
    match read(&page, request).await {
        Ok(asked) => apart(page, move |session| session.trace(&asked)).await,
        Err(refusal) => refusal,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_page_itself_may_change_the_session() {
        let asks = |fields: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.insert(*name, HeaderValue::from_static(value));
            }
            is_own(&headers, "secret")
        };
        let (host, token) = (("host", "127.0.0.1:1"), ("x-rackweave-token", "secret"));
        assert!(asks(&[host, token]));
        assert!(asks(&[host, token, ("origin", "http://127.0.0.1:1")]));
        assert!(asks(&[host, token, ("sec-fetch-site", "same-origin")]));
        assert!(!asks(&[host]), "no token");
        assert!(!asks(&[host, ("x-rackweave-token", "secres")]));
        assert!(!asks(&[host, token, ("origin", "http://evil.example")]));
        assert!(!asks(&[host, token, ("origin", "http://127.0.0.1:2")]), "another server");
        assert!(!asks(&[host, token, ("sec-fetch-site", "cross-site")]));
    }

    #[test]
    fn the_page_is_one_document() {
        for part in [STYLE, SCRIPT] {
            assert!(!part.contains("NONCE") && !part.contains("TOKEN") && !part.contains("</"));
            assert!(!part.contains("STYLE") && !part.contains("SCRIPT"));
        }
        for html in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!SCRIPT.contains(html), "{html}");
        }
        let handler = |word: &&str| word.starts_with("on") && word.contains('=');
        assert_eq!(HTML.split_whitespace().find(handler), None, "the policy forbids handlers here");
    }
}
