//! HTTP: health and metrics.
//!
//! `/livez` answers as long as the process does. `/readyz` answers 200 when the broker serves, 503 with the reasons otherwise. What is wrong
//! elsewhere, such as the damaged journal of a dead broker, is among its warnings and does not take this broker from who is served by it.

use crate::node::{Node, SOFTWARE};
use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use refstream_core::Phase;
use serde::Serialize;
use std::{fmt::Write as _, sync::Arc, time::Duration};

/// A core that has not looked at anything for this long is not well: it writes at least a heartbeat now and then.
const SILENT_AFTER: Duration = Duration::from_secs(60);

/// The routes.
pub(crate) fn router(node: Arc<Node>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(node)
}

#[derive(Debug, Serialize)]
struct Readiness {
    ready: bool,
    phase: &'static str,
    epoch: Option<u64>,
    reasons: Vec<String>,
    warnings: Vec<String>,
}

fn readiness(node: &Node) -> Readiness {
    let (status, at) = node.core.status.borrow().clone();
    let now = node.runtime.now();
    let mut reasons = Vec::new();
    let phase = match status.phase {
        Phase::Starting(step) => {
            reasons.push(format!("starting: {step}"));
            "starting"
        }
        Phase::Serving => "serving",
        Phase::Draining => {
            reasons.push("draining: sealing and committing what is left".into());
            "draining"
        }
        Phase::Stopped => "stopped",
    };
    let stopped = node.core.stopped.borrow().clone();
    let phase = if let Some(reason) = &stopped {
        reasons.push(format!("stopped: {reason}"));
        "stopped"
    } else {
        if let Some((since, said)) = &status.stuck {
            let lasting = now.saturating_sub(*since);
            if lasting >= node.stuck_after {
                let said = if said.is_empty() { "it has not answered" } else { said };
                reasons
                    .push(format!("an operation on the store has had no success for {}s: {said}", lasting.as_secs()));
            }
        }
        if now.saturating_sub(at) >= SILENT_AFTER {
            reasons.push(format!("the core has done nothing for {}s", now.saturating_sub(at).as_secs()));
        }
        phase
    };
    let warnings = status.damaged.iter().map(|(epoch, why)| {
        format!(
            "the journal of epoch {epoch}, a dead broker, cannot be recovered, and nobody serves its partitions: {why}"
        )
    });
    let warnings = warnings.collect();
    Readiness { ready: reasons.is_empty(), phase, epoch: status.epoch.map(|epoch| epoch.0), reasons, warnings }
}

async fn livez() -> &'static str {
    "ok\n"
}

async fn readyz(State(node): State<Arc<Node>>) -> Response {
    let readiness = readiness(&node);
    let code = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(readiness)).into_response()
}

async fn metrics(State(node): State<Arc<Node>>) -> Response {
    match node.metrics.encode() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn index(State(node): State<Arc<Node>>) -> String {
    let readiness = readiness(&node);
    let mut page = format!("{SOFTWARE} broker\n\nphase   {}\n", readiness.phase);
    // Writing to a string does not fail.
    if let Some(epoch) = readiness.epoch {
        let _ = writeln!(page, "epoch   {epoch}");
    }
    for reason in readiness.reasons.iter().chain(&readiness.warnings) {
        let _ = writeln!(page, "        {reason}");
    }
    let topics = node.core.state.borrow().topics.values().filter(|topic| !topic.deleted).count();
    let _ = writeln!(page, "topics  {topics}");
    page.push_str(
        "\n/livez    the process answers\n/readyz   the broker serves, or why not (JSON)\n/metrics  OpenMetrics\n",
    );
    page
}
