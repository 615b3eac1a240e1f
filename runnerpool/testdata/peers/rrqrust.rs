// What the tests of peers ask for, on RRQ's Rust runtime. Put it into the
// runner crate's examples and build it there.
use rrq_runner::telemetry::NoopTelemetry;
use rrq_runner::{ExecutionError, ExecutionOutcome, ExecutionRequest, OutcomeStatus, Registry, RunnerRuntime, parse_tcp_socket};
use serde_json::{Value, json};
use std::time::Duration;

fn success(r: &ExecutionRequest, result: Value) -> ExecutionOutcome {
    ExecutionOutcome::success(r.job_id.clone(), r.request_id.clone(), result)
}

fn other(r: &ExecutionRequest, status: OutcomeStatus, error: ExecutionError) -> ExecutionOutcome {
    ExecutionOutcome { status, error: Some(error), ..success(r, Value::Null) }
}

fn error(message: &str) -> ExecutionError {
    ExecutionError { message: message.to_string(), error_type: None, code: None, details: None }
}

fn params(r: &ExecutionRequest) -> Value {
    serde_json::to_value(&r.params).unwrap()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = RunnerRuntime::new()?;
    let mut registry = Registry::new();
    registry.register("echo", |r| async move { success(&r, params(&r)) });
    registry.register("sleep", |r| async move {
        tokio::time::sleep(Duration::from_millis(params(&r)["ms"].as_u64().unwrap())).await;
        success(&r, params(&r))
    });
    registry.register("fail", |r| async move {
        other(&r, OutcomeStatus::Error, error(params(&r)["message"].as_str().unwrap()))
    });
    registry.register("retry", |r| async move {
        if u64::from(r.context.attempt) > params(&r)["times"].as_u64().unwrap() {
            return success(&r, json!({"attempt": r.context.attempt}));
        }
        ExecutionOutcome { retry_after_seconds: params(&r)["after"].as_f64(), ..other(&r, OutcomeStatus::Retry, error("again")) }
    });
    registry.register("crash", |r| async move {
        std::process::exit(i32::try_from(params(&r)["code"].as_i64().unwrap()).unwrap());
        #[allow(unreachable_code)]
        success(&r, Value::Null)
    });
    registry.register("hang", |r| async move {
        std::thread::sleep(Duration::from_secs(3600)); // never reaches a point where it could be stopped
        success(&r, Value::Null)
    });
    registry.register("big", |r| async move {
        success(&r, json!("x".repeat(usize::try_from(params(&r)["bytes"].as_u64().unwrap()).unwrap())))
    });
    registry.register("context", |r| async move { success(&r, serde_json::to_value(&r.context).unwrap()) });
    registry.register("detailed", |r| async move {
        let details = ExecutionError { error_type: Some("t".into()), code: Some("c".into()), details: Some(json!({"n": 1})), ..error("m") };
        other(&r, OutcomeStatus::Error, details)
    });
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|a| a == "--tcp-socket").ok_or("no --tcp-socket")?;
    runtime.run_tcp_with(&registry, parse_tcp_socket(&args[at + 1])?, &NoopTelemetry)
}
