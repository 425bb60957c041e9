//! Tests the server with clients that write raw bytes.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, SystemTime};

use gpuheap_doctor::{Machine, Recording};
use gpuheap_export::{Exposition, Reading, Server};

/// Returns the exposition of an empty machine that was read `seconds` after the epoch.
fn exposition(seconds: u64) -> Exposition {
    let reading = Reading {
        start: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
        duration: Duration::ZERO,
    };
    Exposition::new(&Machine::read(Recording::parse("").unwrap()), reading, 10)
}

/// Starts a server that lives as long as the test's process.
fn start(interval: Duration) -> SocketAddr {
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = server.address().unwrap();
    let mut seconds = 1000;
    let read = move || {
        seconds += 1;
        Some(exposition(seconds))
    };
    thread::spawn(move || server.serve(exposition(1000), read, interval).unwrap());
    address
}

const NEVER: Duration = Duration::from_secs(3600);

/// Sends bytes, and returns all bytes of the answer.
fn send(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    // The server may close the connection before it has read all bytes.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8(answer).unwrap(),
    }
}

fn get(address: SocketAddr, path: &str, headers: &str) -> (String, String) {
    let answer = send(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn accepted_format_is_served() {
    let address = start(NEVER);
    let (head, body) = get(address, "/metrics?x=1", "Accept: application/openmetrics-text\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    let (head, body) = get(address, "/metrics", "");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("\ngpuheap_reading_timestamp_seconds 1000.0\n"), "{body}");
}

#[test]
fn pages_and_errors_have_status() {
    let address = start(NEVER);
    let (head, body) = get(address, "/", "");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.contains("href=\"/metrics\""));
    let (head, body) = get(address, "/nosuch", "");
    assert!(head.starts_with("HTTP/1.1 404 ") && body.contains("/metrics"), "{head}");
    let answer =
        send(address, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabcd");
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(answer.contains("allow: GET, HEAD\r\n"), "{answer}");
}

#[test]
fn head_has_length_without_body() {
    let address = start(NEVER);
    let (_, body) = get(address, "/metrics", "");
    let answer = send(address, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.contains(&format!("content-length: {}\r\n", body.len())), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn malformed_requests_are_refused() {
    let address = start(NEVER);
    let long = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: x\r\n".repeat(1000));
    for request in
        ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "GET /metrics HTTP/9.9\r\n\r\n", &long, &many]
    {
        let answer = send(address, request);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert!(get(address, "/metrics", "").0.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn silent_clients_are_cut_off() {
    let address = start(NEVER);
    // There are more clients than the server has threads.
    let mut silent: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    silent[0].write_all(b"GET /metrics HTT").unwrap();
    assert!(get(address, "/metrics", "").0.starts_with("HTTP/1.1 200 OK\r\n"));
    let mut answer = Vec::new();
    let _ = silent[0].read_to_end(&mut answer);
    assert_eq!(answer, b"");
}

#[test]
fn further_readings_are_served() {
    let address = start(Duration::from_millis(20));
    let is_later = || !get(address, "/metrics", "").1.contains("timestamp_seconds 1000.0\n");
    let is_later = |_| {
        thread::sleep(Duration::from_millis(10));
        is_later()
    };
    assert!((0..3000).any(is_later));
}

#[test]
fn taken_port_is_refused() {
    let address = start(NEVER);
    assert_eq!(Server::bind(address).unwrap_err().kind(), ErrorKind::AddrInUse);
}
