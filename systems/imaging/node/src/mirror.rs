//! The pull half of the OCI distribution specification, for container runtimes.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::header::{
    ACCEPT, ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName,
    HeaderValue, RANGE,
};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rackweave_disk::{read_exact_at, write_all_at};
use rackweave_page::guarded;
use serde::Deserialize;
use serde_json::Value;

use crate::blob::Failure;
use crate::counts::Counts;
use crate::digest::Digest;
use crate::peers::{self, Reader, part, send};
use crate::registry::{Kind, LARGEST_MANIFEST, Place};
use crate::service::{Found, Node};

/// The header that names what is sent.
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
/// The longest name of a repository.
const LONGEST_NAME: usize = 255;
/// The longest tag (distribution specification, "Pulling manifests").
const LONGEST_TAG: usize = 128;

pub(crate) fn router(node: &Arc<Node>, names: Vec<String>) -> Router {
    let router = Router::new()
        .route("/v2/", get(async || ([(CONTENT_TYPE, "application/json")], "{}")))
        .route("/v2/{*path}", get(content))
        .route("/node/v1/status", get(peers::status))
        .route("/metrics", get(peers::metrics))
        .fallback(async || error(StatusCode::NOT_FOUND, "UNSUPPORTED", "a node serves /v2/"))
        .method_not_allowed_fallback(async || {
            error(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", "a node serves what is pulled")
        })
        .with_state(Arc::clone(node));
    guarded(router, names)
}

/// An error as the specification has it.
fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let body = serde_json::json!({ "errors": [{ "code": code, "message": message }] });
    (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn failed(failure: &Failure, kind: Kind) -> Response {
    let code = match kind {
        Kind::Blob => "BLOB_UNKNOWN",
        Kind::Manifest => "MANIFEST_UNKNOWN",
    };
    let status = match failure {
        Failure::Missing => StatusCode::NOT_FOUND,
        Failure::Damaged | Failure::Other(_) => StatusCode::BAD_GATEWAY,
    };
    error(status, code, &failure.to_string())
}

/// The registry that a runtime means.
#[derive(Debug, Deserialize)]
struct Named {
    ns: Option<String>,
}

/// The repository, the kind and the reference that a path names.
fn named(path: &str) -> Option<(&str, Kind, &str)> {
    let (rest, reference) = path.rsplit_once('/')?;
    let (name, kind) = rest.rsplit_once('/')?;
    let kind = match kind {
        "blobs" => Kind::Blob,
        "manifests" => Kind::Manifest,
        _ => return None,
    };
    let is_component = |it: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_inner = |byte: u8| plain(byte) || matches!(byte, b'.' | b'_' | b'-');
        it.bytes().all(is_inner)
            && it.bytes().next().is_some_and(plain)
            && it.bytes().last().is_some_and(plain)
    };
    let is_tag = |it: &str| {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        it.len() <= LONGEST_TAG
            && it.bytes().next().is_some_and(is_word)
            && it.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
    };
    let is_reference =
        reference.parse::<Digest>().is_ok() || kind == Kind::Manifest && is_tag(reference);
    let is_name = name.len() <= LONGEST_NAME && name.split('/').all(is_component);
    (is_name && is_reference).then_some((name, kind, reference))
}

async fn content(
    State(node): State<Arc<Node>>,
    method: Method,
    Path(path): Path<String>,
    Query(Named { ns }): Query<Named>,
    headers: HeaderMap,
) -> Response {
    let Some((name, kind, reference)) = named(&path) else {
        let why = "a node serves /v2/NAME/manifests/REFERENCE and /v2/NAME/blobs/DIGEST, with digests of SHA-256";
        return error(StatusCode::NOT_FOUND, "NAME_INVALID", why);
    };
    let Some(upstream) = node.upstream(ns.as_deref()).cloned() else {
        let why = "this node is no mirror of that registry";
        return error(StatusCode::NOT_FOUND, "NAME_UNKNOWN", why);
    };
    let (name, reference) = (name.to_owned(), reference.to_owned());
    let place = Place { upstream, name, kind, reference };
    let is_head = method == Method::HEAD;
    match place.reference.parse() {
        Ok(digest) => by_digest(node, digest, place, is_head, &headers).await,
        Err(_) => by_tag(node, place, is_head, &headers).await,
    }
}

async fn by_digest(
    node: Arc<Node>,
    digest: Digest,
    place: Place,
    is_head: bool,
    headers: &HeaderMap,
) -> Response {
    let kind = place.kind;
    let fetcher = Arc::clone(&node);
    // The head of a blob needs no blob; that of a manifest says its type, which is in it.
    if is_head && kind == Kind::Blob {
        let size = tokio::task::spawn_blocking(move || fetcher.size(&digest, &place)).await;
        return match size {
            Ok(Ok(size)) => answer(digest, size, "application/octet-stream", Body::empty()),
            Ok(Err(failure)) => failed(&failure, kind),
            Err(_) => broken(),
        };
    }
    let found = tokio::task::spawn_blocking(move || fetcher.fetch(digest, &place)).await;
    let found = match found {
        Ok(Ok(found)) => found,
        Ok(Err(failure)) => return failed(&failure, kind),
        Err(_) => return broken(),
    };
    if kind == Kind::Manifest {
        return match whole(&node, &found).await {
            Ok(text) => manifest(digest, text, is_head),
            Err(failure) => failed(&failure, kind),
        };
    }
    let size = found.size();
    let asked = headers.get(RANGE).and_then(|it| it.to_str().ok());
    let Some(asked) = asked else {
        let body = send(node, found, 0..size, Reader::Runtime);
        return answer(digest, size, "application/octet-stream", body);
    };
    let Some(bytes) = part(asked, size) else {
        let mut response =
            error(StatusCode::RANGE_NOT_SATISFIABLE, "BLOB_UNKNOWN", "there is no such part");
        if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
            response.headers_mut().insert(CONTENT_RANGE, value);
        }
        return response;
    };
    let range = format!("bytes {}-{}/{size}", bytes.start, bytes.end - 1);
    let length = bytes.end - bytes.start;
    let body = send(node, found, bytes, Reader::Runtime);
    let mut response = answer(digest, length, "application/octet-stream", body);
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    if let Ok(value) = HeaderValue::from_str(&range) {
        response.headers_mut().insert(CONTENT_RANGE, value);
    }
    response
}

fn broken() -> Response {
    error(StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN", "an error in Rackweave")
}

fn answer(digest: Digest, length: u64, media_type: &str, body: Body) -> Response {
    let headers = [
        (CONTENT_TYPE, media_type.to_owned()),
        (CONTENT_LENGTH, length.to_string()),
        (DIGEST, digest.to_string()),
        (ACCEPT_RANGES, "bytes".to_owned()),
    ];
    (headers, body).into_response()
}

/// All of a manifest, once it is checked.
async fn whole(node: &Arc<Node>, found: &Found) -> Result<Vec<u8>, Failure> {
    let failed = |error: std::io::Error| Failure::Other(error.to_string());
    let size = found.size();
    if size > LARGEST_MANIFEST {
        return Err(Failure::Other(format!("a manifest of {size} bytes is too large")));
    }
    let file = match found {
        Found::Stored(file, _) => Arc::clone(file),
        Found::Arriving(blob) => {
            blob.ended(std::time::Duration::from_secs(60)).await?;
            let (finder, digest) = (Arc::clone(node), blob.digest);
            let stored = tokio::task::spawn_blocking(move || finder.store.open_blob(&digest)).await;
            let gone = || Failure::Other("it has gone for lack of room".to_owned());
            stored.ok().flatten().map(|(file, _)| file).ok_or_else(gone)?
        }
    };
    let mut text = vec![0; usize::try_from(size).unwrap_or(0)];
    read_exact_at(&*file, &mut text, 0).map_err(failed)?;
    Counts::add(&node.counts.to_runtimes, size);
    Ok(text)
}

/// The media type of a manifest: what it says, or what its fields tell (image specification, "Image Manifest", "Image Index").
fn media_type(text: &[u8]) -> String {
    let value: Value = serde_json::from_slice(text).unwrap_or_default();
    let said = value["mediaType"].as_str().filter(|it| it.bytes().all(|it| it.is_ascii_graphic()));
    match said {
        Some(said) => said.to_owned(),
        None if value["manifests"].is_array() => {
            "application/vnd.oci.image.index.v1+json".to_owned()
        }
        None if value["schemaVersion"] == 1 => {
            "application/vnd.docker.distribution.manifest.v1+prettyjws".to_owned()
        }
        None => "application/vnd.oci.image.manifest.v1+json".to_owned(),
    }
}

fn manifest(digest: Digest, text: Vec<u8>, is_head: bool) -> Response {
    let (length, media_type) = (text.len() as u64, media_type(&text));
    let body = if is_head { Body::empty() } else { Body::from(text) };
    answer(digest, length, &media_type, body)
}

/// What a tag stands for now, which only the registry knows.
async fn by_tag(node: Arc<Node>, place: Place, is_head: bool, headers: &HeaderMap) -> Response {
    let accept: Vec<_> = headers.get_all(ACCEPT).iter().filter_map(|it| it.to_str().ok()).collect();
    let accept = accept.join(", ");
    let asker = Arc::clone(&node);
    let asked = tokio::task::spawn_blocking(move || {
        let tagged = asker.registry.tagged(&place, &accept, is_head)?;
        if tagged.status == 200 && !is_head {
            keep(&asker, &tagged.body);
        }
        Ok::<_, String>(tagged)
    });
    let tagged = match asked.await {
        Ok(Ok(tagged)) => tagged,
        Ok(Err(why)) => return error(StatusCode::BAD_GATEWAY, "MANIFEST_UNKNOWN", &why),
        Err(_) => return broken(),
    };
    if tagged.status != 200 {
        let status = match tagged.status {
            404 => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_GATEWAY,
        };
        let why = format!("the registry says {}", tagged.status);
        return error(status, "MANIFEST_UNKNOWN", &why);
    }
    let own = (!is_head).then(|| Digest::of(&tagged.body).to_string());
    let length = if is_head { tagged.length } else { Some(tagged.body.len() as u64) };
    let mut response = Body::from(tagged.body).into_response();
    let all = [
        (CONTENT_TYPE, tagged.media_type),
        (DIGEST, own.or(tagged.digest)),
        (CONTENT_LENGTH, length.map(|it| it.to_string())),
    ];
    for (name, value) in all {
        if let Some(value) = value.and_then(|it| HeaderValue::from_str(&it).ok()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Stores a manifest, which others will ask for by its digest.
fn keep(node: &Node, text: &[u8]) {
    let digest = Digest::of(text);
    if node.store.size(&digest).is_some() {
        return;
    }
    // If it cannot be stored, it is fetched again.
    if let Ok(part) = node.store.create(&digest)
        && write_all_at(part.file(), text, 0).is_ok()
        && let Ok(gone) = node.store.publish(&digest, &part, text.len() as u64)
    {
        Counts::add(&node.counts.evicted, gone as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_a_repository_a_kind_and_a_reference() {
        let digest = Digest::of(b"").to_string();
        let path = format!("library/al-pine/blobs/{digest}");
        assert_eq!(named(&path), Some(("library/al-pine", Kind::Blob, &*digest)));
        assert_eq!(named("a/manifests/3.20_x"), Some(("a", Kind::Manifest, "3.20_x")));
        for wrong in [
            "",
            "blobs/x",
            "a/blobs/latest",
            "a/tags/list",
            "a/manifests/.x",
            "a/manifests/",
            "../x/manifests/y",
            "A/manifests/y",
            "a//b/manifests/y",
            "a?b/manifests/y",
            "a/manifests/y?z",
            "a/manifests/sha512:x",
        ] {
            assert_eq!(named(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn manifests_say_their_type_or_show_it() {
        let of = |text: &str| media_type(text.as_bytes());
        assert_eq!(of(r#"{"mediaType": "a/b"}"#), "a/b");
        assert!(of(r#"{"manifests": []}"#).ends_with("image.index.v1+json"));
        assert!(of(r#"{"layers": []}"#).ends_with("image.manifest.v1+json"));
        assert!(of("\u{0}").ends_with("image.manifest.v1+json"));
        assert!(of("{\"mediaType\": \"a\\nb\"}").ends_with("image.manifest.v1+json"));
    }
}
