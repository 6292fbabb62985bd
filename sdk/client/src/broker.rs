//! Connections to brokers, and calls that are repeated until they succeed, are refused for good, or time is up.
//!
//! One channel an endpoint; a channel dials when it is first used and again after it was lost. A connection on which the other side
//! does not answer pings counts as lost.
//!
//! Any broker of a cluster answers any call. Those that were named by the user, and those that the brokers name, take turns: a call goes to
//! the one that answered last; where that one cannot be reached, is stopping, or is silent for [`SILENCE`] (longer from round to round), the
//! next one is asked at once.

use crate::{CallError, InvalidAnswer, InvalidEndpoint, InvalidToken, Refusal, Unreachable, backoff::Backoff};
use futures::future::{Either, select};
use refstream_filer_adapter::Runtime;
use refstream_proto::{error_detail, v1::ErrorDetail};
use std::{
    collections::HashMap,
    error::Error as _,
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tonic::{
    Code, Request, Response, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// How endpoints with TLS begin.
const HTTPS: &str = "https://";
/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection is pinged when it was silent for this long while calls are open.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// A ping without an answer for this long ends the connection.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that may be under way on one stream before the reader has taken them.
const STREAM_WINDOW: u32 = 4 << 20;
/// Bytes that may be under way on a connection.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// How long an attempt may take before the next of several brokers is asked; doubled with each round.
const SILENCE: Duration = Duration::from_millis(500);
/// The longest answer that is accepted, in bytes.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 << 20;

/// How long a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// No attempt is awaited beyond the client's timeout.
    Timeout,
    /// No attempt is awaited beyond the client's timeout, which begins after so long: until then the broker may wait itself.
    Waits(Duration),
    /// An attempt that a broker works on is awaited for as long as the connection lives.
    Work,
}

/// A channel on which every call carries the client's token.
pub(crate) type Line = InterceptedService<Channel, Bearer>;

/// The token that calls carry, where there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    /// Reads a token. Its value is never printed.
    pub(crate) fn new(token: Option<&str>) -> Result<Self, InvalidToken> {
        let Some(token) = token else { return Ok(Self(None)) };
        let plain = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        let value = Some(token).filter(|_| plain).and_then(|token| format!("Bearer {token}").parse().ok());
        let mut value: MetadataValue<Ascii> = value.ok_or(InvalidToken)?;
        value.set_sensitive(true);
        Ok(Self(Some(value)))
    }
    fn has_token(&self) -> bool {
        self.0.is_some()
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// The endpoints of a cluster.
#[derive(Debug)]
struct Endpoints {
    /// Those that the user named, then those that brokers named.
    all: Vec<String>,
    named: usize,
    /// The one that is asked first.
    current: usize,
}

/// Brokers by endpoint.
#[derive(Debug)]
pub(crate) struct Brokers {
    /// The first one that the user named.
    endpoint: String,
    endpoints: Mutex<Endpoints>,
    timeout: Duration,
    runtime: Arc<dyn Runtime>,
    bearer: Bearer,
    /// To trust beside the system's.
    authorities: Option<Certificate>,
    /// Payloads are stored by grants.
    granted: AtomicBool,
    channels: Mutex<HashMap<String, Channel>>,
}

impl Brokers {
    /// Brokers that are found through the one at `endpoint`, or through any of several, separated by commas.
    pub(crate) fn new(
        endpoint: &str,
        timeout: Duration,
        bearer: Bearer,
        authorities: Option<Vec<u8>>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self, InvalidEndpoint> {
        let mut all = Vec::new();
        for endpoint in endpoint.split(',').map(str::trim) {
            let endpoint = normalised(endpoint)?;
            if !all.contains(&endpoint) {
                all.push(endpoint);
            }
        }
        let endpoints = Endpoints { named: all.len(), current: 0, all };
        let endpoint = endpoints.all.first().cloned().unwrap_or_default();
        let (endpoints, channels) = (Mutex::new(endpoints), Mutex::new(HashMap::new()));
        let brokers = Self {
            endpoint,
            endpoints,
            timeout,
            runtime,
            bearer,
            authorities: authorities.map(Certificate::from_pem),
            granted: AtomicBool::new(false),
            channels,
        };
        for endpoint in &brokers.endpoints().all {
            brokers.channel(endpoint)?;
        }
        Ok(brokers)
    }
    fn endpoints(&self) -> std::sync::MutexGuard<'_, Endpoints> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Brokers that a broker named. One alone is the one that is known already, maybe by another name.
    pub(crate) fn learn(&self, brokers: &[String]) {
        if brokers.len() < 2 {
            return;
        }
        let mut endpoints = self.endpoints();
        let current = endpoints.all.get(endpoints.current).cloned();
        let named = endpoints.named;
        endpoints.all.truncate(named);
        for broker in brokers.iter().filter_map(|broker| normalised(broker).ok()) {
            if !endpoints.all.contains(&broker) {
                endpoints.all.push(broker);
            }
        }
        endpoints.current = endpoints.all.iter().position(|known| Some(known) == current.as_ref()).unwrap_or(0);
    }
    /// Whether there are several.
    pub(crate) fn are_several(&self) -> bool {
        self.endpoints().all.len() > 1
    }
    /// Whom to ask, and how many there are.
    fn current(&self) -> (String, usize) {
        let endpoints = self.endpoints();
        let current = endpoints.all.get(endpoints.current).cloned();
        (current.unwrap_or_else(|| self.endpoint.clone()), endpoints.all.len())
    }
    /// The next one is asked from here on, unless somebody else has seen to that.
    fn pass_over(&self, failed: &str) {
        let mut endpoints = self.endpoints();
        if endpoints.all.get(endpoints.current).is_some_and(|current| current == failed) {
            endpoints.current = (endpoints.current + 1) % endpoints.all.len();
        }
    }
    /// The first endpoint that was given.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }
    /// Notes that a payload is stored by a grant.
    pub(crate) fn note_granted(&self) {
        self.granted.store(true, Ordering::Relaxed);
    }
    /// Whether payloads were stored by grants: brokers look up what records refer to then.
    pub(crate) fn has_granted(&self) -> bool {
        self.granted.load(Ordering::Relaxed)
    }
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The line to a broker; does not dial yet.
    pub(crate) fn channel(&self, endpoint: &str) -> Result<Line, InvalidEndpoint> {
        Ok(InterceptedService::new(self.dialled(endpoint)?, self.bearer.clone()))
    }

    fn dialled(&self, endpoint: &str) -> Result<Channel, InvalidEndpoint> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(endpoint) {
            return Ok(channel.clone());
        }
        let invalid = |why: String| InvalidEndpoint { endpoint: endpoint.to_owned(), why };
        let address = normalised(endpoint)?;
        let mut dialled = Endpoint::from_shared(address.clone()).map_err(|error| invalid(text_of(&error)))?;
        if address.starts_with(HTTPS) {
            let mut tls = ClientTlsConfig::new().with_enabled_roots();
            if let Some(authorities) = &self.authorities {
                tls = tls.ca_certificate(authorities.clone());
            }
            dialled = dialled.tls_config(tls).map_err(|error| invalid(text_of(&error)))?;
        } else if self.bearer.has_token() && !is_loopback(&address) {
            return Err(invalid(
                "the token would travel in the clear: use https://, for which the broker needs broker.tls_certificate"
                    .into(),
            ));
        }
        let channel = dialled
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .connect_lazy();
        channels.insert(endpoint.to_owned(), channel.clone());
        Ok(channel)
    }

    /// Calls brokers until one answers, refuses for good, or the timeout has passed.
    pub(crate) async fn call<T, Call>(
        &self,
        patience: Patience,
        mut call: impl FnMut(Line) -> Call,
    ) -> Result<T, CallError>
    where
        Call: Future<Output = Result<Response<T>, Status>>,
    {
        let start = self.runtime.now();
        let mut backoff = Backoff::new();
        let mut repeated_in_doubt = false;
        let mut said: Option<Failure> = None;
        let mut attempts = 0_usize;
        loop {
            let (endpoint, several) = self.current();
            let channel = self.channel(&endpoint);
            let mut left = self.timeout.saturating_sub(self.runtime.now() - start);
            let round = u32::try_from(attempts / several).unwrap_or(u32::MAX);
            if several > 1 {
                left = left.min(SILENCE.saturating_mul(1 << round.min(10)));
            }
            if let Patience::Waits(wait) = patience {
                left += wait;
            }
            let failure = match channel {
                // A broker that named itself so that it cannot be called, for example because the token would travel in the clear.
                Err(error) => Failure::never_called(&error),
                Ok(channel) => {
                    let attempt = Box::pin(call(channel));
                    let outcome = match patience {
                        Patience::Work => attempt.await,
                        Patience::Timeout | Patience::Waits(_) => match select(attempt, self.runtime.sleep(left)).await
                        {
                            Either::Left((outcome, _)) => outcome,
                            Either::Right(_) => Err(Status::deadline_exceeded("no answer in time")),
                        },
                    };
                    match outcome {
                        Ok(response) => return Ok(response.into_inner()),
                        Err(status) => Failure::of(&endpoint, &status),
                    }
                }
            };
            attempts += 1;
            let mut delay = Duration::ZERO;
            if failure.retryable {
                self.pass_over(&endpoint);
            }
            // Each broker is asked once before anybody waits.
            if attempts.is_multiple_of(several) {
                delay = failure.retry_after.unwrap_or_else(|| backoff.next(&*self.runtime));
            }
            let tried_for = self.runtime.now() - start;
            if !failure.retryable || tried_for + delay >= self.timeout {
                // What the broker said before it fell silent tells more than its silence.
                let (last, in_doubt) = match said {
                    Some(said) if failure.refusal.is_none() => (said, repeated_in_doubt || !failure.no_side_effects),
                    _ => (failure, repeated_in_doubt),
                };
                return Err(last.into_error(&endpoint, tried_for, in_doubt));
            }
            repeated_in_doubt |= !failure.no_side_effects;
            if failure.refusal.is_some() {
                said = Some(failure);
            }
            self.runtime.sleep(delay).await;
        }
    }

    /// Calls the broker at this endpoint and no other, once.
    pub(crate) async fn call_at<T, Call>(&self, endpoint: &str, call: impl FnOnce(Line) -> Call) -> Result<T, CallError>
    where
        Call: Future<Output = Result<Response<T>, Status>>,
    {
        let start = self.runtime.now();
        let channel = self.channel(endpoint).map_err(|error| self.invalid_answer(error.to_string()))?;
        let outcome = match select(Box::pin(call(channel)), self.runtime.sleep(self.timeout)).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => Err(Status::deadline_exceeded("no answer in time")),
        };
        match outcome {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => {
                let tried_for = self.runtime.now() - start;
                Err(Failure::of(endpoint, &status).into_error(endpoint, tried_for, false))
            }
        }
    }

    pub(crate) fn invalid_answer(&self, why: impl Into<String>) -> CallError {
        CallError::Answer(InvalidAnswer { endpoint: self.endpoint.clone(), why: why.into() })
    }
}

/// Why an attempt failed.
pub(crate) struct Failure {
    pub(crate) retryable: bool,
    pub(crate) no_side_effects: bool,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) why: String,
    refusal: Option<Refusal>,
}

impl Failure {
    fn never_called(error: &InvalidEndpoint) -> Self {
        Self { retryable: true, no_side_effects: true, retry_after: None, why: error.to_string(), refusal: None }
    }

    pub(crate) fn of(endpoint: &str, status: &Status) -> Self {
        let detail = error_detail(status);
        let refused = Refusal::new(endpoint, &detail);
        let transport = status.details().is_empty() && detail.retryable;
        if transport {
            let why = text_of_status(status);
            return Self {
                retryable: true,
                no_side_effects: is_connect_failure(status),
                retry_after: None,
                why,
                refusal: None,
            };
        }
        Self {
            retryable: detail.retryable,
            no_side_effects: detail.no_side_effects,
            retry_after: retry_after(&detail),
            why: refused.message.clone(),
            refusal: Some(refused),
        }
    }

    pub(crate) fn into_error(self, endpoint: &str, tried_for: Duration, in_doubt: bool) -> CallError {
        let clean = self.no_side_effects && !in_doubt;
        match self.refusal {
            Some(refusal) => {
                CallError::Refused(Refusal { no_side_effects: clean, repeated_in_doubt: in_doubt, ..refusal })
            }
            None => CallError::Unreachable(Unreachable {
                endpoint: endpoint.to_owned(),
                tried_for,
                why: self.why,
                may_have_arrived: !clean,
            }),
        }
    }
}

/// The delay that a broker asks for.
pub(crate) fn retry_after(detail: &ErrorDetail) -> Option<Duration> {
    detail.retry_after_micros.map(|micros| Duration::from_micros(micros).min(Duration::from_secs(10)))
}

/// Whether the connection never came about, so that nothing can have arrived.
fn is_connect_failure(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<std::io::Error>()
            && matches!(
                error.kind(),
                std::io::ErrorKind::ConnectionRefused
                    | std::io::ErrorKind::HostUnreachable
                    | std::io::ErrorKind::NetworkUnreachable
            )
        {
            return true;
        }
        source = error.source();
    }
    status.code() == Code::Unavailable && status.message().contains("tcp connect error")
}

fn text_of_status(status: &Status) -> String {
    match status.source() {
        Some(source) => format!("{}: {}", status.message(), text_of(source)),
        None if status.message().is_empty() => status.code().to_string(),
        None => status.message().to_owned(),
    }
}

/// The innermost cause says most.
fn text_of(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn normalised(endpoint: &str) -> Result<String, InvalidEndpoint> {
    let refuse = |why: &str| Err(InvalidEndpoint { endpoint: endpoint.to_owned(), why: why.to_owned() });
    let authority = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest).split(['/', '?', '#']).next();
    if let Some((_, host)) = authority.and_then(|authority| authority.rsplit_once('@')) {
        // What is before the host is secret.
        return Err(InvalidEndpoint {
            endpoint: format!("http://...@{host}"),
            why: "it holds a user name or password, which brokers do not take".into(),
        });
    }
    let (scheme, rest) = endpoint.trim().split_once("://").unwrap_or(("http", endpoint.trim()));
    match (scheme, rest.trim_end_matches('/')) {
        ("http" | "https", "") => refuse("it names no host"),
        ("http" | "https", rest) => Ok(format!("{scheme}://{rest}")),
        (scheme, _) => refuse(&format!("the scheme {scheme:?} is neither http nor https")),
    }
}

/// Whether an endpoint is on this machine's loopback interface.
pub(crate) fn is_loopback(endpoint: &str) -> bool {
    let Some(host) = endpoint.parse::<tonic::transport::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned))
    else {
        return false;
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorClass;
    use refstream_filer_adapter::TokioRuntime;

    #[test]
    fn endpoints_are_checked() {
        assert_eq!(normalised("127.0.0.1:7400/").unwrap(), "http://127.0.0.1:7400");
        assert_eq!(normalised("https://x:1").unwrap(), "https://x:1");
        for bad in ["", "ftp://x", "https://", "http://"] {
            assert!(normalised(bad).is_err(), "{bad}");
        }
        let error = normalised("http://me:s3cret@host:1").unwrap_err().to_string();
        assert!(error.contains("host:1") && !error.contains("s3cret"), "{error}");
    }

    #[test]
    fn a_token_does_not_travel_in_the_clear() {
        let brokers = |endpoint: &str, token: Option<&str>| {
            let bearer = Bearer::new(token).unwrap();
            Brokers::new(endpoint, Duration::from_secs(1), bearer, None, Arc::new(TokioRuntime::new())).map(drop)
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let refused = brokers("http://10.1.2.3:7400", Some("hush")).unwrap_err().to_string();
        assert!(refused.contains("https://") && !refused.contains("hush"), "{refused}");
        brokers("http://10.1.2.3:7400", None).unwrap();
        brokers("http://localhost:7400", Some("hush")).unwrap();
        brokers("https://10.1.2.3:7400", Some("hush")).unwrap();
    }

    #[test]
    fn a_token_is_checked_and_never_shown() {
        let bearer = Bearer::new(Some("hush-hush")).unwrap();
        assert!(!format!("{bearer:?}").contains("hush"));
        for bad in ["", "hush hush", "hush\n", "hüsh"] {
            let error = Bearer::new(Some(bad)).unwrap_err().to_string();
            assert!(error.contains("token") && !error.contains("sh"), "{error}");
        }
    }

    #[tokio::test]
    async fn several_endpoints_take_turns_and_are_kept() {
        let runtime = Arc::new(TokioRuntime::new());
        let brokers = Brokers::new("http://a:1, b:2", Duration::ZERO, Bearer::default(), None, runtime).unwrap();
        assert_eq!(brokers.current(), ("http://a:1".into(), 2));
        brokers.pass_over("http://b:2");
        assert_eq!(brokers.current().0, "http://a:1");
        brokers.pass_over("http://a:1");
        brokers.learn(&["http://b:2".into(), "http://c:3".into()]);
        assert_eq!(brokers.current(), ("http://b:2".into(), 3));
        brokers.learn(&["http://only:4".into()]);
        assert_eq!(brokers.current(), ("http://b:2".into(), 3));
        for bad in ["http://a:1,", "http://a:1,ftp://b"] {
            let runtime = Arc::new(TokioRuntime::new());
            assert!(Brokers::new(bad, Duration::ZERO, Bearer::default(), None, runtime).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_broker_that_cannot_be_called_is_passed_over() {
        use crate::doubles::{looks_up, lookup_answer};
        let (named, open) = (looks_up(lookup_answer(1)), "http://10.1.2.3:7400");
        let bearer = Bearer::new(Some("hush")).unwrap();
        let runtime = Arc::new(TokioRuntime::new());
        let brokers = Brokers::new(&named, Duration::from_secs(30), bearer, None, runtime).unwrap();
        brokers.learn(&[named.clone(), open.into()]);
        brokers.pass_over(&named);
        assert_eq!(brokers.current(), (open.into(), 2), "a token does not go there in the clear");
        assert!(crate::records::lookup(&brokers, &"t".parse().unwrap(), None).await.is_ok());
        assert_eq!(brokers.current().0, named);
    }

    #[tokio::test]
    async fn how_long_was_tried_is_how_long_was_tried() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let clock = Arc::new(crate::doubles::Clock::default());
        let brokers = Brokers::new(&endpoint, Duration::from_secs(600), Bearer::default(), None, clock).unwrap();
        let error = brokers
            .call_at(&endpoint, |channel| async move {
                refstream_proto::v1::cluster_client::ClusterClient::new(channel)
                    .drain(refstream_proto::v1::DrainRequest {})
                    .await
            })
            .await
            .err()
            .unwrap();
        assert!(error.to_string().contains("tried for 0.0 s"), "{error}");
    }

    #[test]
    fn loopback_is_recognised() {
        for here in ["http://127.0.0.1:7400", "http://localhost:1", "http://[::1]:7400", "http://127.9.9.9"] {
            assert!(is_loopback(here), "{here}");
        }
        for elsewhere in ["http://10.0.0.1:7400", "http://localhost.evil.example:1", "nonsense"] {
            assert!(!is_loopback(elsewhere), "{elsewhere}");
        }
    }

    #[tokio::test]
    async fn a_refused_connection_is_unreachable_without_side_effects() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let brokers =
            Brokers::new(&endpoint, Duration::from_millis(200), Bearer::default(), None, Arc::new(TokioRuntime::new()));
        let brokers = brokers.unwrap();
        let error = brokers
            .call(Patience::Timeout, |channel| async move {
                refstream_proto::v1::topics_client::TopicsClient::new(channel)
                    .list_topics(refstream_proto::v1::ListTopicsRequest {})
                    .await
            })
            .await
            .err()
            .unwrap();
        assert_eq!(error.class(), ErrorClass::Unreachable);
        assert!(error.is_retryable() && error.has_no_side_effects());
        let text = error.to_string();
        assert!(text.contains(&endpoint) && text.contains("refused") && text.contains("--endpoint"), "{text}");
    }
}
