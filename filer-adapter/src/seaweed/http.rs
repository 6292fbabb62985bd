//! One request to a master or volume server, and what its answer means.

use super::Shared;
use crate::{
    StoreError, StoreErrorKind,
    attempt::{self, Failed, cause, chain},
};
use refstream_types::Key;
use reqwest::{RequestBuilder, Response};
use std::{io, time::Duration};

/// The most of an error's body that is read and shown.
const SHOWN: usize = 300;

/// An answer with its body.
pub(super) struct Answer {
    pub(super) status: u16,
    /// Of the `Authorization` header: a permission that the master gives.
    pub(super) token: Option<String>,
    pub(super) etag: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Shared {
    pub(super) fn error(
        &self,
        kind: StoreErrorKind,
        operation: &'static str,
        key: Option<&Key>,
        message: impl Into<String>,
    ) -> StoreError {
        StoreError { kind, operation, store: self.name.to_string(), key: key.cloned(), message: message.into() }
    }

    /// Sends a request whose body has `bytes` bytes and waits for the answer's beginning, of whatever status.
    pub(super) async fn send(
        &self,
        operation: &'static str,
        key: Option<&Key>,
        bytes: u64,
        request: RequestBuilder,
    ) -> Result<Response, Failed> {
        let limit = attempt::time_limit(self.config.request_timeout, bytes);
        let unavailable = |message: String, happened| {
            let error = self.error(StoreErrorKind::Unavailable, operation, key, message);
            Failed { error, happened, status: None }
        };
        match tokio::time::timeout(limit, request.send()).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if attempt::is_untrusted(&chain(&error)) => {
                let error = self.error(StoreErrorKind::Invalid, operation, key, chain(&error));
                Err(Failed { error, happened: false, status: None })
            }
            Ok(Err(error)) => {
                let refused = cause::<io::Error>(&error).is_some_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
                Err(unavailable(chain(&error), !refused && !error.is_connect()))
            }
            Err(_) => Err(unavailable(format!("no answer within {} s", limit.as_secs()), true)),
        }
    }

    /// Sends a request and reads the whole of a small answer.
    pub(super) async fn ask(
        &self,
        operation: &'static str,
        key: Option<&Key>,
        bytes: u64,
        request: RequestBuilder,
    ) -> Result<Answer, Failed> {
        let answer = self.send(operation, key, bytes, request).await?;
        if !answer.status().is_success() {
            return Err(self.refused(operation, key, answer).await);
        }
        let status = answer.status().as_u16();
        let (token, etag) = (token(&answer), etag(&answer));
        let body = tokio::time::timeout(self.config.request_timeout, answer.bytes()).await;
        match body {
            Ok(Ok(body)) => Ok(Answer { status, token, etag, body: body.into() }),
            cut => {
                let message = match cut {
                    Ok(Err(error)) => chain(&error),
                    _ => "the answer broke off".into(),
                };
                let error = self.error(StoreErrorKind::Unavailable, operation, key, message);
                Err(Failed { error, happened: true, status: None })
            }
        }
    }

    /// What an answer that is no success says.
    pub(super) async fn refused(&self, operation: &'static str, key: Option<&Key>, answer: Response) -> Failed {
        let status = answer.status().as_u16();
        let wait = header(&answer, "retry-after").and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let text = match tokio::time::timeout(self.config.request_timeout, answer.bytes()).await {
            Ok(Ok(body)) => String::from_utf8_lossy(&body[..body.len().min(SHOWN)]).trim().to_owned(),
            _ => String::new(),
        };
        let kind = match status {
            _ if text.contains("no space left") => StoreErrorKind::NoSpace,
            404 => StoreErrorKind::NotFound,
            401 | 403 => StoreErrorKind::AccessDenied,
            // 406: no volume can be written now; the master grows some.
            406 | 429 | 503 => StoreErrorKind::Throttled(wait),
            507 => StoreErrorKind::NoSpace,
            408 | 500.. => StoreErrorKind::Unavailable,
            _ => StoreErrorKind::Invalid,
        };
        let happened = status >= 500 || status == 408;
        let error = self.error(kind, operation, key, format!("{status} {text}").trim_end());
        Failed { error, happened, status: Some(status) }
    }
}

pub(super) fn header<'a>(answer: &'a Response, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

pub(super) fn etag(answer: &Response) -> Option<String> {
    header(answer, "etag").map(|etag| etag.trim_matches('"').to_owned())
}

fn token(answer: &Response) -> Option<String> {
    let (kind, token) = header(answer, "authorization")?.split_once(' ')?;
    kind.eq_ignore_ascii_case("bearer").then(|| token.to_owned())
}
