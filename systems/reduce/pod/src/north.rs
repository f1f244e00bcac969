//! HTTP: the requests of masters and operators, the page, and metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, ORIGIN};
use axum::http::{HeaderName, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use rackweave_core::Time;
use rackweave_page::{
    Bounds, Party, Pieces, Places, Visit, body, document, ended, guarded, refused, whole,
};
use rackweave_rackless::controller::{Controller, Phase, Refusal, Standing};
use rackweave_rackless::demand::JobId;
use rackweave_rackless::jobs::JobError;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::api::{Job, Known, Reached, Refused, Register};
use crate::core::Shared;
use crate::metrics;
use crate::status::{Circuits, Plan, Status, circuits, plan};
use crate::tenants::{Tenant, Tenants};

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// The longest body of a request.
const LONGEST_BODY: usize = 1 << 20;
/// How many seconds a request for a grant waits at most.
const LONGEST_WAIT: u8 = 10;
/// The least time between two events of the page.
const EACH: Duration = Duration::from_millis(200);
/// Readers of the page. The oldest of the address that has most makes room for another.
const READERS: Bounds = Bounds { most: 16, of_one: 16, kept: 0 };
/// The requests of masters and operators.
const REQUESTS: &str = "/v1";

/// What requests share.
pub(crate) struct North {
    shared: Shared,
    tenants: Tenants,
    readers: Places<Party>,
}

type At = State<Arc<North>>;
/// The tenant of a request, as `admit` has found.
type Asks = Extension<Tenant>;

pub(crate) fn router(shared: Shared, tenants: Tenants, names: Vec<String>) -> Router {
    let north = Arc::new(North { shared, tenants, readers: Places::new(READERS) });
    let requests = Router::new()
        .route("/v1/jobs", get(list).post(register))
        .route("/v1/jobs/{job}", get(job).delete(end))
        .route("/v1/jobs/{job}/ready", post(ready))
        .route("/v1/jobs/{job}/phase", post(phase))
        .route("/v1/status", get(status))
        .route("/v1/plan", get(planned))
        .route("/v1/circuits", get(present))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&north), admit));
    let router = Router::new()
        .route("/", get(async || document(HTML, STYLE, SCRIPT)))
        .route("/events", get(events))
        .route("/metrics", get(metrics))
        .merge(requests)
        .fallback(async || refused(StatusCode::NOT_FOUND, "there is nothing here\n"))
        .with_state(north);
    guarded(router, names).layer(middleware::from_fn(explain))
}

/// Lets a request of a tenant pass, with its whole body. Who may ask is known from the head: nobody else's body is waited for.
async fn admit(State(north): At, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let tenant = match north.tenant(&parts.headers) {
        Ok(tenant) => tenant,
        Err(problem) => return problem.into_response(),
    };
    if let Some(visit) = parts.extensions.get::<Visit>() {
        visit.proves(&tenant.name);
    }
    parts.extensions.insert(tenant);
    match whole(body, LONGEST_BODY).await {
        Ok(bytes) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Err(error) => Problem(error.status(), error.to_string()).into_response(),
    }
}

/// Whether this is the path of requests, also of one that there is not.
fn is_request(path: &str) -> bool {
    path.strip_prefix(REQUESTS).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Gives each refusal of a request a sentence in `error`, also where it is not understood as one.
async fn explain(request: Request, next: Next) -> Response {
    let is_request = is_request(request.uri().path());
    let response = next.run(request).await;
    let status = response.status();
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|it| it == "application/json");
    if !is_request || !(status.is_client_error() || status.is_server_error()) || is_json {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let text = whole(body, LONGEST_BODY).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let error = match text.trim() {
        "" if status == StatusCode::METHOD_NOT_ALLOWED => "there is no such method of this path",
        "" => status.canonical_reason().unwrap_or("refused"),
        text => text,
    };
    let error = error.to_owned();
    for header in [CONTENT_TYPE, CONTENT_LENGTH] {
        parts.headers.remove(header);
    }
    let explained = Problem(status, error).into_response();
    let (json, body) = explained.into_parts();
    parts.headers.extend(json.headers);
    Response::from_parts(parts, body)
}

/// Why a request has no answer.
struct Problem(StatusCode, String);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(Refused { error: self.1 })).into_response()
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = match &refusal {
            Refusal::Full(_) | Refusal::TenantFull(_) | Refusal::Job(JobError::NoJobId) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Refusal::NoSuchJob(_) => StatusCode::NOT_FOUND,
            Refusal::Standby => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::Declaration(_) | Refusal::Job(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self(status, refusal.to_string())
    }
}

type Answer<T> = Result<Json<T>, Problem>;

impl North {
    /// The tenant of a request.
    fn tenant(&self, headers: &HeaderMap) -> Result<Tenant, Problem> {
        // A browser names the site whose script asks; none is a tenant's program.
        if headers.contains_key(ORIGIN) {
            let why = "requests are for programs, not for scripts of web pages".to_owned();
            return Err(Problem(StatusCode::FORBIDDEN, why));
        }
        self.tenants.of(token(headers)).ok_or_else(|| {
            let why = "this needs the token of a tenant: Authorization: Bearer TOKEN";
            Problem(StatusCode::UNAUTHORIZED, why.to_owned())
        })
    }

    /// Does something for a tenant, and answers with a job of his once that is stored.
    fn act(
        &self,
        Tenant { name, .. }: &Tenant,
        act: impl FnOnce(&mut Controller, Time, &str) -> Result<JobId, Refusal>,
    ) -> Answer<Job> {
        let answer = self.shared.act(|controller, now| {
            let id = act(controller, now, name)?;
            controller.heard(now, name, id).map(Job::of)
        });
        Ok(Json(stored(answer)??))
    }
}

/// The token of a request. The case of the scheme does not matter (RFC 9110, 11.1).
fn token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim_start_matches(' '))
}

fn stored<T>(answer: Result<T, crate::DatabaseError>) -> Result<T, Problem> {
    answer.map_err(|error| Problem(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
}

fn read<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Problem> {
    serde_json::from_slice(bytes)
        .map_err(|error| Problem(StatusCode::BAD_REQUEST, format!("not understood: {error}")))
}

async fn register(State(north): At, tenant: Asks, bytes: Bytes) -> Answer<Job> {
    let Register { nonce, job } = read(&bytes)?;
    north.act(&tenant, |controller, now, tenant| controller.register(now, tenant, nonce, job))
}

async fn ready(State(north): At, Path(job): Path<u16>, tenant: Asks, bytes: Bytes) -> Answer<Job> {
    let known: Known = read(&bytes)?;
    north.act(&tenant, |controller, now, tenant| {
        controller.ready(now, tenant, JobId(job), |declared| known.put_into(declared))?;
        Ok(JobId(job))
    })
}

async fn phase(State(north): At, Path(job): Path<u16>, tenant: Asks, bytes: Bytes) -> Answer<Job> {
    let Reached { phase, known } = read(&bytes)?;
    if phase == Phase::Ready {
        let why = "a job becomes ready by /ready".to_owned();
        return Err(Problem(StatusCode::UNPROCESSABLE_ENTITY, why));
    }
    north.act(&tenant, |controller, now, tenant| {
        let id = JobId(job);
        controller.announce(now, tenant, id, |declared| known.put_into(declared))?;
        controller.phase(now, tenant, id, phase)?;
        Ok(id)
    })
}

async fn end(State(north): At, Path(job): Path<u16>, tenant: Asks) -> Result<StatusCode, Problem> {
    let ended = north.shared.act(|controller, now| controller.end(now, &tenant.name, JobId(job)));
    match stored(ended)? {
        // A repetition.
        Ok(()) | Err(Refusal::NoSuchJob(_)) => Ok(StatusCode::NO_CONTENT),
        Err(refusal) => Err(refusal.into()),
    }
}

#[derive(Deserialize)]
struct Wait {
    /// Seconds.
    #[serde(default)]
    wait: u8,
}

async fn job(
    State(north): At,
    Path(job): Path<u16>,
    Query(Wait { wait }): Query<Wait>,
    tenant: Asks,
) -> Answer<Job> {
    let mut changes = north.shared.subscribe();
    let wait_s = wait.min(LONGEST_WAIT);
    let until = tokio::time::Instant::now() + Duration::from_secs(wait_s.into());
    loop {
        changes.mark_unchanged();
        let Json(it) = north.act(&tenant, |_, _, _| Ok(JobId(job)))?;
        let waits = wait_s > 0 && it.grant.is_none();
        if !waits || tokio::time::timeout_at(until, changes.changed()).await.is_err() {
            return Ok(Json(it));
        }
    }
}

#[derive(Deserialize)]
struct Named {
    name: Option<String>,
}

async fn list(
    State(north): At,
    Query(Named { name }): Query<Named>,
    tenant: Asks,
) -> Answer<Vec<Job>> {
    let core = north.shared.lock();
    let own = core.controller.jobs().filter(|it| tenant.is_operator || it.tenant() == tenant.name);
    let named = own.filter(|it| name.as_ref().is_none_or(|name| *name == it.declared().name));
    Ok(Json(named.map(Job::of).collect()))
}

async fn status(State(north): At, tenant: Asks) -> Json<Status> {
    Json(Status::of(&north.shared.lock(), 0, Some(&tenant)))
}

async fn planned(State(north): At) -> Json<Plan> {
    let core = north.shared.lock();
    Json(plan(&core.controller, core.controller.planned()))
}

async fn present(State(north): At) -> Json<Circuits> {
    Json(circuits(&north.shared.lock().controller))
}

async fn metrics(State(north): At) -> Response {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::text(&north.shared.lock())).into_response()
}

async fn events(
    State(north): At,
    Extension(visit): Extension<Visit>,
    headers: HeaderMap,
) -> Response {
    let reader = north.tenants.of(token(&headers));
    if let Some(reader) = &reader {
        visit.proves(&reader.name);
    }
    let place = visit.take(&north.readers);
    let (out, body) = body();
    let shared = north.shared.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = tell(shared, reader.as_ref(), out) => {}
            () = place.evicted() => {}
        }
    });
    let kind: [(HeaderName, &str); 1] = [(CONTENT_TYPE, "text/event-stream")];
    (kind, body).into_response()
}

/// Sends the status five times a second, with the events since the last one.
async fn tell(shared: Shared, reader: Option<&Tenant>, out: Pieces) {
    if out.send(Ok(Bytes::from_static(b"retry: 1000\n\n"))).await.is_err() {
        return;
    }
    let mut end = std::pin::pin!(ended(shared.subscribe()));
    let mut seen = 0;
    loop {
        let status = {
            let core = shared.lock();
            let status = Status::of(&core, seen, reader);
            seen = core.told.back().map_or(seen, |it| it.number);
            status
        };
        let Ok(json) = serde_json::to_vec(&status) else { return };
        let event = [b"data: ", &json[..], b"\n\n"].concat();
        if out.send(Ok(event.into())).await.is_err() {
            return;
        }
        tokio::select! {
            () = &mut end => return,
            () = out.closed() => return,
            () = tokio::time::sleep(EACH) => {}
        }
    }
}

/// Whether a controller commands.
pub(crate) fn is_active(shared: &Shared) -> bool {
    let core = shared.lock();
    core.controller.standing(core.now()) == Standing::Active
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_below_a_path_and_the_path_itself() {
        assert!(["/v1", "/v1/", "/v1/jobs"].into_iter().all(is_request));
        assert!(!["/", "/v1x", "/events"].into_iter().any(is_request));
    }

    #[test]
    fn the_scheme_of_a_token_ignores_case() {
        let of = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            token(&headers).map(str::to_owned)
        };
        for value in ["Bearer Abc", "bearer Abc", "BEARER  Abc"] {
            assert_eq!(of(value).as_deref(), Some("Abc"), "{value}");
        }
        for value in ["Basic Abc", "Bearer", "Abc", "BearerAbc x"] {
            assert_eq!(of(value), None, "{value}");
        }
    }
}
