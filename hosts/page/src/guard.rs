//! Which requests are answered, and what all answers have.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

/// Refuses requests by other names than these, IP addresses and `localhost`, and adds the headers that all responses have.
pub fn guarded(router: Router, names: Vec<String>) -> Router {
    router.layer(middleware::from_fn_with_state(Arc::new(names), guard))
}

/// A response in plain text.
#[must_use]
pub fn refused(status: StatusCode, why: &'static str) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], why).into_response()
}

async fn guard(State(names): State<Arc<Vec<String>>>, request: Request, next: Next) -> Response {
    let mut response = if is_own(request.headers(), &names) {
        next.run(request).await
    } else {
        let why =
            "this is not a name of the server: use its address, or a name that it was given\n";
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

/// A random number that nobody can guess.
///
/// # Panics
/// If the system has no random numbers: nothing that depends on secrets may run then.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a nonce must not be predictable")]
pub fn random() -> u128 {
    let mut bytes = [0; 16];
    if let Err(error) = getrandom::fill(&mut bytes) {
        panic!("the system has no random numbers: {error}");
    }
    u128::from_ne_bytes(bytes)
}

/// What the scripts of all pages share.
const ELEMENTS: &str = include_str!("elements.js");

/// One document with its style and script, in place of `STYLE` and `SCRIPT` in the HTML; `NONCE` stands where they are allowed. Before
/// the script stands what all pages share (`elements.js`). Its policy permits requests to this server only.
#[must_use]
pub fn document(html: &str, style: &str, script: &str) -> Response {
    let nonce = format!("{:032x}", random());
    let html = html.replace("NONCE", &nonce).replace("STYLE", style);
    let html = html.replace("SCRIPT", &format!("{ELEMENTS}\n{script}"));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    );
    let headers =
        [(CONTENT_TYPE, "text/html; charset=utf-8".to_owned()), (CONTENT_SECURITY_POLICY, policy)];
    (headers, html).into_response()
}

/// The sender of a body's pieces.
pub type Pieces = mpsc::Sender<io::Result<Bytes>>;

/// A body that is sent as it is made. Whoever makes it waits for the reader.
pub fn body() -> (Pieces, Body) {
    let (pieces, body) = mpsc::channel(1);
    (pieces, Body::from_stream(ReceiverStream::new(body)))
}

/// Why there is no body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is too long.
    #[error("a request has at most {0} bytes")]
    TooLong(usize),
    /// It takes too long.
    #[error("the request was not complete within {} s", .0.as_secs_f64())]
    TooSlow(Duration),
    /// The connection has failed.
    #[error("the request was broken off")]
    BrokenOff,
}

impl BodyError {
    /// The status of the answer.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::TooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::BrokenOff => StatusCode::BAD_REQUEST,
        }
    }
}

/// The time for the body of a request.
const BODY: Duration = Duration::from_secs(10);

/// Reads the whole body of a request, within ten seconds. Whoever may ask is decided before, by the head.
///
/// # Errors
/// See [`BodyError`].
pub async fn whole(body: Body, most: usize) -> Result<Bytes, BodyError> {
    // What is announced is not waited for.
    if body.size_hint().lower() > most as u64 {
        return Err(BodyError::TooLong(most));
    }
    let read = async {
        let mut pieces = body.into_data_stream();
        let mut all = BytesMut::new();
        while let Some(piece) = pieces.next().await {
            all.extend_from_slice(&piece.map_err(|_| BodyError::BrokenOff)?);
            if all.len() > most {
                return Err(BodyError::TooLong(most));
            }
        }
        Ok(all.freeze())
    };
    timeout(BODY, read).await.unwrap_or(Err(BodyError::TooSlow(BODY)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scripts_share_makes_no_html_of_texts() {
        for html in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "</",
            "NONCE",
        ] {
            assert!(!ELEMENTS.contains(html), "{html}");
        }
    }

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
}
