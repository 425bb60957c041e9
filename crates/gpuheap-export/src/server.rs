//! HTTP server for the last reading.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::rt::ReadBufCursor;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Exposition;
use crate::format::Format;

/// Number of threads that answer. It bounds the connections: further clients wait in the kernel's
/// queue. tokio's runtime would need fewer threads. But its build took 8 s of processor time, as
/// much as all other dependencies of this crate together (2026-11-28, two busy cores).
const THREADS: usize = 32;

/// Time for a request. A silent client occupies a thread for this time. With 5 s, 7 clients a
/// second delayed every scrape.
const REQUEST_LIMIT: Duration = Duration::from_secs(1);

/// Time for a response. A slower client is disconnected.
const RESPONSE_LIMIT: Duration = Duration::from_secs(5);

/// Maximum size of a request's head, bytes.
const MOST_HEAD: usize = 16 << 10;

/// Page at `/`.
const INDEX: &str = "<!DOCTYPE html>\n<html lang=\"en\"><title>gpuheap export</title>\n\
                     <h1>gpuheap export</h1>\n<p><a href=\"/metrics\">Metrics</a></p>\n</html>\n";

/// A server that is bound to its address and does not serve yet.
#[derive(Debug)]
pub struct Server(TcpListener);

/// The last reading.
type Current = Arc<RwLock<Arc<Exposition>>>;

impl Server {
    /// Binds an address.
    ///
    /// # Errors
    ///
    /// The address is in use, or is not one of this machine.
    pub fn bind(address: SocketAddr) -> io::Result<Server> {
        TcpListener::bind(address).map(Server)
    }

    /// Returns the bound address. Its port is known, also if the requested one was 0.
    ///
    /// # Errors
    ///
    /// The kernel does not return the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves `first`, then a new reading each `interval`, until SIGTERM or SIGINT. A thread reads,
    /// so a scrape never waits for a reading. If `read` returns `None`, the last reading stays.
    ///
    /// # Errors
    ///
    /// The threads or the handlers of signals cannot be set up.
    pub fn serve(
        self,
        first: Exposition,
        mut read: impl FnMut() -> Option<Exposition> + Send + 'static,
        interval: Duration,
    ) -> io::Result<()> {
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let current: Current = Arc::new(RwLock::new(Arc::new(first)));
        let listener = Arc::new(self.0);
        for _ in 0..THREADS {
            let (listener, current) = (listener.clone(), current.clone());
            spawn(move || accept(&listener, &current))?;
        }
        spawn(move || {
            let mut next = Instant::now() + interval;
            loop {
                thread::sleep(next.saturating_duration_since(Instant::now()));
                next = Instant::now() + interval;
                if let Some(exposition) = read() {
                    let mut current = current.write().unwrap_or_else(PoisonError::into_inner);
                    *current = Arc::new(exposition);
                }
            }
        })?;
        // The threads end with the process.
        signals.forever().next();
        Ok(())
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("gpuheap-export".to_owned()).spawn(work).map(drop)
}

/// Answers one client after the other.
fn accept(listener: &TcpListener, current: &Current) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => answer(stream, current),
            // The process lacks descriptors or memory, or the client has closed its connection.
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Answers one request.
fn answer(stream: TcpStream, current: &Current) {
    let end = Rc::new(Cell::new(Instant::now() + REQUEST_LIMIT));
    let connection = Connection { stream, end: end.clone() };
    let service = service_fn(|request: Request<Incoming>| {
        end.set(Instant::now() + RESPONSE_LIMIT);
        let exposition = current.read().unwrap_or_else(PoisonError::into_inner).clone();
        ready(Ok::<_, Infallible>(respond(&request, &exposition)))
    });
    let connection = http1::Builder::new()
        // Without it, the response is written only after the client has closed its side.
        .half_close(true)
        .keep_alive(false)
        .header_read_timeout(None)
        .max_buf_size(MOST_HEAD)
        .serve_connection(connection, service);
    let mut connection = pin!(connection);
    let mut context = Context::from_waker(Waker::noop());
    // Reads and writes block, so hyper is pending only to yield to other tasks.
    while connection.as_mut().poll(&mut context).is_pending() && Instant::now() < end.get() {}
}

/// A client's connection. Its reads and writes block, until `end` at most.
struct Connection {
    stream: TcpStream,
    end: Rc<Cell<Instant>>,
}

impl Connection {
    /// Returns the time that is left.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.end.get().saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl hyper::rt::Read for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 4096];
        let most = buffer.remaining().min(bytes.len());
        let read = self.left().and_then(|left| {
            self.stream.set_read_timeout(left)?;
            self.stream.read(&mut bytes[..most])
        });
        Poll::Ready(read.map(|count| buffer.put_slice(&bytes[..count])))
    }
}

impl hyper::rt::Write for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(self.left().and_then(|left| {
            self.stream.set_write_timeout(left)?;
            self.stream.write(bytes)
        }))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.shutdown(std::net::Shutdown::Write))
    }
}

/// Returns the response to a request.
fn respond<B>(request: &Request<B>, exposition: &Exposition) -> Response<String> {
    let (status, content_type, body) = match (request.uri().path(), request.method()) {
        ("/" | "/metrics", method) if ![Method::GET, Method::HEAD].contains(method) => {
            let text = "this page answers GET and HEAD\n".to_owned();
            (StatusCode::METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", text)
        }
        ("/metrics", _) => {
            let accept = request.headers().get_all(ACCEPT).iter();
            let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
            let format = Format::accepted(&accept.join(","));
            (StatusCode::OK, format.content_type(), exposition.text(format).to_owned())
        }
        ("/", _) => (StatusCode::OK, "text/html; charset=utf-8", INDEX.to_owned()),
        _ => {
            let text = "not found; the metrics are at /metrics\n".to_owned();
            (StatusCode::NOT_FOUND, "text/plain; charset=utf-8", text)
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
