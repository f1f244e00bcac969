//! The registries behind a node, as the OCI distribution specification has them. All calls block.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rackweave_core::visible;
use serde::Deserialize;
use ureq::http::{Response, header};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, ResponseExt as _};

use crate::blob::Failure;

/// The media types of manifests that are asked for by digest.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.v1+prettyjws, */*";
/// The largest manifest (distribution specification, "Pushing Manifests").
pub(crate) const LARGEST_MANIFEST: u64 = 4 << 20;
/// How long a connection and the head of an answer may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long nothing may arrive.
const IDLE: Duration = Duration::from_secs(30);
/// How long a registry thinks before it answers: some fetch first themselves.
const ANSWER: Duration = Duration::from_secs(60);
/// How long a token is used that does not say how long it is valid (distribution's token specification).
const TOKEN_S: u64 = 60;
/// The most tokens that are kept.
const MOST_TOKENS: usize = 1024;

/// A registry that a node is a mirror of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// The name by which runtimes call it: `docker.io` in `docker.io/library/alpine`.
    pub name: String,
    /// Its URL, without a path.
    pub url: String,
}

/// Why a text is no registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a registry is NAME=URL, such as docker.io=https://registry-1.docker.io, and its URL has no path"
)]
pub struct UpstreamParseError;

impl FromStr for Upstream {
    type Err = UpstreamParseError;

    fn from_str(text: &str) -> Result<Self, UpstreamParseError> {
        let (name, url) = text.split_once('=').ok_or(UpstreamParseError)?;
        let url = url.trim_end_matches('/');
        let host = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let host = host.ok_or(UpstreamParseError)?;
        let is_plain = |it: &str| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_plain(name) || !is_plain(host) || host.contains(['/', '?', '#', '@']) {
            return Err(UpstreamParseError);
        }
        Ok(Self { name: name.to_owned(), url: url.to_owned() })
    }
}

/// Names and passwords for registries, as `docker login` writes them.
#[derive(Clone, Default)]
pub struct Credentials(BTreeMap<String, String>);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Credentials").field(&self.0.keys()).finish()
    }
}

/// Why a file has no credentials.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// It is not JSON of this form.
    #[error("it is no Docker configuration: {0}")]
    Form(serde_json::Error),
    /// An entry cannot be used.
    #[error("the entry of `{0}` has no `auth` of a name and a password in base64")]
    Entry(String),
}

impl Credentials {
    /// Reads a `config.json` of Docker: `{"auths": {"registry.example": {"auth": "…"}}}`.
    ///
    /// # Errors
    /// If it has another form. Helper programs are not asked.
    pub fn read(text: &str) -> Result<Self, CredentialsError> {
        #[derive(Deserialize)]
        struct Entry {
            auth: Option<String>,
        }
        #[derive(Deserialize)]
        struct File {
            #[serde(default)]
            auths: BTreeMap<String, Entry>,
        }
        // An array would be an object without names.
        let fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).map_err(CredentialsError::Form)?;
        let file: File = serde_json::from_value(fields.into()).map_err(CredentialsError::Form)?;
        let mut all = BTreeMap::new();
        for (name, entry) in file.auths {
            // A helper program has it.
            let Some(auth) = entry.auth else { continue };
            if !STANDARD.decode(&auth).is_ok_and(|it| it.contains(&b':')) {
                return Err(CredentialsError::Entry(visible(&name)));
            }
            let host = name.trim_start_matches("https://").trim_start_matches("http://");
            let host = host.split('/').next().unwrap_or(host).to_owned();
            all.insert(host, auth);
        }
        Ok(Self(all))
    }

    fn of(&self, upstream: &Upstream) -> Option<&String> {
        let host = upstream.url.split("://").last().unwrap_or_default();
        self.0.get(&upstream.name).or_else(|| self.0.get(host)).or_else(|| {
            // Docker's own name for its registry.
            (upstream.name == "docker.io").then(|| self.0.get("index.docker.io")).flatten()
        })
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) upstream: Upstream,
    /// The name of the repository, such as `library/alpine`.
    pub(crate) name: String,
    /// `blobs` or `manifests`.
    pub(crate) kind: Kind,
    /// A digest or tag.
    pub(crate) reference: String,
}

/// The kind of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Blob,
    Manifest,
}

impl Place {
    fn url(&self) -> String {
        let kind = match self.kind {
            Kind::Blob => "blobs",
            Kind::Manifest => "manifests",
        };
        format!("{}/v2/{}/{kind}/{}", self.upstream.url, self.name, self.reference)
    }
}

/// The client of all registries.
pub(crate) struct Registry {
    agent: Agent,
    credentials: Credentials,
    tokens: Mutex<BTreeMap<(String, String), (String, Instant)>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

/// The certificates of a PEM file.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, String> {
    let mut all = Vec::new();
    for item in parse_pem(pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => all.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    if all.is_empty() { Err("it has no certificate".to_owned()) } else { Ok(all) }
}

/// Reads a file of certificates.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    std::fs::read(path).map_err(|error| error.to_string()).and_then(|pem| certificates(&pem))
}

/// What a body of an answer has.
pub(crate) struct Content {
    /// Its bytes.
    pub(crate) body: Box<dyn Read + Send>,
    /// The first byte of the content that it has.
    pub(crate) first: u64,
}

/// An answer for a tag.
pub(crate) struct Tagged {
    pub(crate) status: u16,
    pub(crate) media_type: Option<String>,
    pub(crate) digest: Option<String>,
    pub(crate) length: Option<u64>,
    pub(crate) body: Vec<u8>,
}

impl Registry {
    pub(crate) fn new(credentials: Credentials, roots: Option<Vec<Certificate<'static>>>) -> Self {
        let mut tls = TlsConfig::builder();
        if let Some(roots) = roots {
            tls = tls.root_certs(RootCerts::new_with_certs(&roots));
        }
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(ANSWER))
            .timeout_per_read(Some(IDLE))
            .http_status_as_error(false)
            .max_redirects(5)
            .tls_config(tls.build())
            .user_agent("rackweave")
            .build();
        Self { agent: config.into(), credentials, tokens: Mutex::default() }
    }

    /// Sends a request, and once more with a token if the registry wants one.
    fn send(
        &self,
        place: &Place,
        method: Method,
        accept: &str,
        range: Option<(u64, u64)>,
        patience: Duration,
    ) -> Result<Response<Body>, String> {
        let url = place.url();
        let key = (place.upstream.url.clone(), place.name.clone());
        let mut authorization = self.token(&key);
        let mut is_again = false;
        loop {
            let mut request = match method {
                Method::Get => self.agent.get(&url),
                Method::Head => self.agent.head(&url),
            };
            request = request.header(header::ACCEPT, accept);
            if let Some((first, last)) = range {
                request = request.header(header::RANGE, format!("bytes={first}-{last}"));
            }
            if let Some(authorization) = &authorization {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let request = request.config().timeout_recv_body(Some(patience)).build();
            let response = request.call().map_err(|error| error.to_string())?;
            if response.status() != 401 || is_again {
                return Ok(response);
            }
            is_again = true;
            // A name and a password are the registry's: not for whom it redirects to.
            let asks = response.get_uri();
            let own = place.upstream.url.parse::<ureq::http::Uri>().ok();
            let is_own = |own: ureq::http::Uri| {
                (own.scheme(), own.authority()) == (asks.scheme(), asks.authority())
            };
            if !own.is_some_and(is_own) {
                let host = asks.host().unwrap_or_default();
                return Err(format!("it redirects to `{}`, which wants a password", visible(host)));
            }
            let wanted = response.headers().get(header::WWW_AUTHENTICATE);
            let wanted = wanted.and_then(|it| it.to_str().ok()).unwrap_or_default().to_owned();
            authorization = Some(self.authorize(place, &wanted, key.clone())?);
        }
    }

    fn token(&self, key: &(String, String)) -> Option<String> {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, until) = tokens.get(key)?;
        (*until > now()).then(|| token.clone())
    }

    /// The value of an `Authorization` for a registry that asks for one.
    fn authorize(
        &self,
        place: &Place,
        wanted: &str,
        key: (String, String),
    ) -> Result<String, String> {
        let basic = self.credentials.of(&place.upstream).map(|auth| format!("Basic {auth}"));
        let (scheme, rest) = wanted.split_once(' ').unwrap_or((wanted, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return basic.ok_or_else(|| "it wants a name and a password".to_owned());
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(format!("it wants the authorization `{}`", visible(scheme)));
        }
        let fields = parameters(rest);
        let realm = fields.get("realm").ok_or("it names nobody who gives tokens")?;
        // A name and a password go to where the registry's own are safe.
        if place.upstream.url.starts_with("https://") && !realm.starts_with("https://") {
            return Err(format!("it wants a token of `{}`, without encryption", visible(realm)));
        }
        let mut request = self.agent.get(realm);
        if let Some(service) = fields.get("service") {
            request = request.query("service", service);
        }
        let scope = fields.get("scope").cloned();
        request = request
            .query("scope", scope.unwrap_or_else(|| format!("repository:{}:pull", place.name)));
        if let Some(basic) = basic {
            request = request.header(header::AUTHORIZATION, basic);
        }
        let failed =
            |error: &dyn fmt::Display| format!("no token from {}: {error}", visible(realm));
        let request = request.config().timeout_global(Some(IDLE)).build();
        let mut response = request.call().map_err(|error| failed(&error))?;
        if !response.status().is_success() {
            return Err(failed(&response.status()));
        }
        #[derive(Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
            expires_in: Option<u64>,
        }
        let text = response.body_mut().with_config().limit(1 << 20).read_to_string();
        let text = text.map_err(|error| failed(&error))?;
        let token: Token = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        let valid = Duration::from_secs(token.expires_in.unwrap_or(TOKEN_S).clamp(10, 3600) - 5);
        let token = token.token.or(token.access_token).ok_or_else(|| failed(&"there is none"))?;
        let authorization = format!("Bearer {token}");
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() >= MOST_TOKENS {
            tokens.clear();
        }
        tokens.insert(key, (authorization.clone(), now() + valid));
        Ok(authorization)
    }

    /// The size of content that is named by its digest.
    pub(crate) fn size(&self, place: &Place) -> Result<u64, Failure> {
        let failed = |why: String| Failure::Other(unreachable(place, &why));
        let response = self.send(place, Method::Head, MANIFESTS, None, CONNECT).map_err(failed)?;
        checked(place, response.status().as_u16())?;
        let text = |response: &Response<Body>, name| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let length = text(&response, header::CONTENT_LENGTH).and_then(|it| it.parse().ok());
        if let Some(length) = length {
            return Ok(length);
        }
        // A part says how long the whole is.
        let range = Some((0, 0));
        let response = self.send(place, Method::Get, MANIFESTS, range, CONNECT).map_err(failed)?;
        let total = text(&response, header::CONTENT_RANGE);
        let total = total.and_then(|it| it.rsplit('/').next().and_then(|it| it.parse().ok()));
        total.ok_or_else(|| failed("it does not say how long it is".to_owned()))
    }

    /// Content from a byte on, up to another one if the registry gives parts.
    pub(crate) fn content(
        &self,
        place: &Place,
        first: u64,
        last: u64,
        patience: Duration,
    ) -> Result<Content, Failure> {
        let failed = |why: String| Failure::Other(unreachable(place, &why));
        let range = Some((first, last));
        let response = self.send(place, Method::Get, MANIFESTS, range, patience).map_err(failed)?;
        let status = response.status().as_u16();
        checked(place, status)?;
        let first = if status == 206 {
            let said = response.headers().get(header::CONTENT_RANGE);
            let said =
                said.and_then(|it| it.to_str().ok()).and_then(|it| it.strip_prefix("bytes "));
            let said = said.and_then(|it| it.split_once('-')).and_then(|it| it.0.parse().ok());
            said.filter(|said| *said == first)
                .ok_or_else(|| failed("it sends another part than it was asked for".to_owned()))?
        } else {
            0
        };
        let limit = last.saturating_add(1);
        let body = response.into_body().into_with_config().limit(limit).reader();
        Ok(Content { body: Box::new(body), first })
    }

    /// What a tag stands for now.
    pub(crate) fn tagged(
        &self,
        place: &Place,
        accept: &str,
        is_head: bool,
    ) -> Result<Tagged, String> {
        let method = if is_head { Method::Head } else { Method::Get };
        let accept = if accept.is_empty() { MANIFESTS } else { accept };
        let mut response = self
            .send(place, method, accept, None, Duration::from_secs(30))
            .map_err(|why| unreachable(place, &why))?;
        let text = |name| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let (media_type, digest) = (text("content-type"), text("docker-content-digest"));
        let length = text("content-length").and_then(|it| it.parse().ok());
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(LARGEST_MANIFEST).read_to_vec();
        let body = body.map_err(|error| unreachable(place, &error.to_string()))?;
        if is_head && status == 200 && length.is_none() {
            // A runtime wants the length.
            let whole = self.tagged(place, accept, false)?;
            let length = Some(whole.body.len() as u64);
            return Ok(Tagged { length, body: Vec::new(), ..whole });
        }
        Ok(Tagged { status, media_type, digest, length, body })
    }
}

#[derive(Clone, Copy)]
enum Method {
    Get,
    Head,
}

#[expect(clippy::disallowed_methods, reason = "tokens expire in real time")]
fn now() -> Instant {
    Instant::now()
}

fn unreachable(place: &Place, why: &str) -> String {
    format!("the registry {} fails: {why}", place.upstream.url)
}

fn checked(place: &Place, status: u16) -> Result<(), Failure> {
    match status {
        200 | 206 => Ok(()),
        404 => Err(Failure::Missing),
        _ => Err(Failure::Other(unreachable(place, &format!("status {status}")))),
    }
}

/// The parameters of a `WWW-Authenticate` (RFC 9110, section 11.2).
fn parameters(text: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([' ', ',']).to_ascii_lowercase();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        all.insert(name, value.to_owned());
        rest = after;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_have_a_name_and_a_url() {
        let good: Upstream = "docker.io=https://registry-1.docker.io/".parse().unwrap();
        assert_eq!((&*good.name, &*good.url), ("docker.io", "https://registry-1.docker.io"));
        for wrong in ["", "docker.io", "a=b", "=http://x", "a=http://", "a=http://x/y", "a=ftp://x"]
        {
            assert_eq!(wrong.parse::<Upstream>(), Err(UpstreamParseError), "{wrong}");
        }
    }

    #[test]
    fn a_challenge_is_read() {
        let all = parameters(
            r#"realm="https://auth.example/token",service="a, b=c",scope="repository:x:pull""#,
        );
        assert_eq!(all["realm"], "https://auth.example/token");
        assert_eq!((&*all["service"], &*all["scope"]), ("a, b=c", "repository:x:pull"));
        assert!(parameters("").is_empty() && parameters("realm=\"x").contains_key("realm"));
    }

    #[test]
    fn docker_configurations_are_read() {
        let text = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "YTpi"}}, "x": 1}"#;
        let all = Credentials::read(text).unwrap();
        let docker: Upstream = "docker.io=https://registry-1.docker.io".parse().unwrap();
        assert_eq!(all.of(&docker).unwrap(), "YTpi");
        let other: Upstream = "other=https://other.example".parse().unwrap();
        assert_eq!(all.of(&other), None);
        assert!(!format!("{all:?}").contains("YTpi"));
        let wrong = Credentials::read(r#"{"auths": {"x": {"auth": "?"}}}"#).unwrap_err();
        assert!(wrong.to_string().contains("`x`"));
        assert!(Credentials::read("[]").is_err());
    }
}
