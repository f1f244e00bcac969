//! The examples compile and run.

#[path = "../../examples/echo.rs"]
mod echo;
#[path = "../../examples/many_to_one.rs"]
mod many_to_one;
#[path = "../../examples/stream.rs"]
mod stream;

#[test]
fn echo_runs() {
    echo::main().unwrap();
}

#[test]
fn many_to_one_runs() {
    many_to_one::main().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_runs() {
    stream::run(50_000_000).await.unwrap();
    // Its `main` takes the size from the command line, so the test does not call it.
    let _ = stream::main;
}
