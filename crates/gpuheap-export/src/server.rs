//! Serves the last reading over HTTP.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
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

/// Maximum number of connections. Each connection has a thread. tokio's runtime would need fewer.
/// But building it took 8 s of processor time, as much as this crate's other dependencies together
/// (2026-11-28, two busy cores).
const MOST_CLIENTS: usize = 32;

/// Time limit for receiving a request. A silent client occupies a thread for this time.
const REQUEST_LIMIT: Duration = Duration::from_secs(1);

/// Time limit for sending a response. A client that reads more slowly is disconnected.
const RESPONSE_LIMIT: Duration = Duration::from_secs(5);

/// Maximum size of a request's head, in bytes.
const MOST_HEAD: usize = 16 << 10;

/// Page at `/`.
const INDEX: &str = "<!DOCTYPE html>\n<html lang=\"en\"><title>gpuheap export</title>\n\
                     <h1>gpuheap export</h1>\n<p><a href=\"/metrics\">Metrics</a></p>\n</html>\n";

/// A server that is bound to its address but does not serve yet.
#[derive(Debug)]
pub struct Server(TcpListener);

/// The last reading.
type Current = Arc<RwLock<Arc<Exposition>>>;

/// Connections with their peers, the oldest first.
type Clients = Vec<(IpAddr, Arc<TcpStream>)>;

impl Server {
    /// Binds an address.
    ///
    /// # Errors
    ///
    /// The address is in use, or is not an address of this machine.
    pub fn bind(address: SocketAddr) -> io::Result<Server> {
        TcpListener::bind(address).map(Server)
    }

    /// Returns the bound address. If port 0 was requested, the address has the port that the kernel
    /// chose.
    ///
    /// # Errors
    ///
    /// The kernel does not return the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves `first`, then a new reading each `interval`, until SIGTERM or SIGINT. A separate
    /// thread reads, so a scrape never waits for a reading. If `read` returns `None`, the last
    /// reading stays.
    ///
    /// # Errors
    ///
    /// The threads or the signal handlers cannot be set up.
    pub fn serve(
        self,
        first: Exposition,
        mut read: impl FnMut() -> Option<Exposition> + Send + 'static,
        interval: Duration,
    ) -> io::Result<()> {
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let current: Current = Arc::new(RwLock::new(Arc::new(first)));
        let served = current.clone();
        spawn(move || accept(&self.0, &served))?;
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

/// Starts a thread for each client. If all threads are in use, closes an old connection for a new
/// client: waiting for a free thread would let silent clients delay every scrape.
fn accept(listener: &TcpListener, current: &Current) {
    let clients: Arc<Mutex<Clients>> = Arc::default();
    loop {
        let Ok((stream, peer)) = listener.accept() else {
            // `accept` fails if file descriptors or memory ran out, or if the client closed its
            // connection. The pause keeps the loop from using a whole core while the failure lasts.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        let stream = Arc::new(stream);
        let mut list = lock(&clients);
        if list.len() >= MOST_CLIENTS {
            let at = replaced(&list);
            let (_, oldest) = list.remove(at);
            // Wakes the thread that serves this connection. An error means that the client has
            // closed the connection.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        list.push((peer.ip(), stream.clone()));
        drop(list);
        let (served, current) = (clients.clone(), current.clone());
        let work = move || {
            answer(stream.clone(), &current);
            lock(&served).retain(|(_, client)| !Arc::ptr_eq(client, &stream));
        };
        if spawn(work).is_err() {
            // No thread serves the new client, so its connection, the last in the list, is closed.
            lock(&clients).pop();
        }
    }
}

fn lock(clients: &Mutex<Clients>) -> MutexGuard<'_, Clients> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the index of the connection that a new client replaces: the oldest connection of the
/// peer with the most connections. A scrape takes milliseconds, so it ends before its connection is
/// the oldest.
fn replaced(clients: &Clients) -> usize {
    let count = |of: IpAddr| clients.iter().filter(|(peer, _)| *peer == of).count();
    (0..clients.len()).rev().max_by_key(|&at| count(clients[at].0)).unwrap_or(0)
}

/// Answers one request.
fn answer(stream: Arc<TcpStream>, current: &Current) {
    let end = Rc::new(Cell::new(Instant::now() + REQUEST_LIMIT));
    let connection = Connection { stream, end: end.clone() };
    let service = service_fn(|request: Request<Incoming>| {
        end.set(Instant::now() + RESPONSE_LIMIT);
        let exposition = current.read().unwrap_or_else(PoisonError::into_inner).clone();
        ready(Ok::<_, Infallible>(respond(&request, &exposition)))
    });
    let connection = http1::Builder::new()
        // Otherwise hyper reads again before it writes the response, to find out whether the client
        // closed its side. Reads block here, so the response would wait for the client.
        .half_close(true)
        .keep_alive(false)
        .header_read_timeout(None)
        .max_buf_size(MOST_HEAD)
        .serve_connection(connection, service);
    let mut connection = pin!(connection);
    let mut context = Context::from_waker(Waker::noop());
    // Because reads and writes block, hyper returns `Pending` only to yield to other tasks.
    while connection.as_mut().poll(&mut context).is_pending() && Instant::now() < end.get() {}
}

/// A client's connection. Its reads and writes block until `end` at the latest.
struct Connection {
    stream: Arc<TcpStream>,
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
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; 4096];
        let most = buffer.remaining().min(bytes.len());
        let read = self.left().and_then(|left| {
            self.stream.set_read_timeout(left)?;
            (&*self.stream).read(&mut bytes[..most])
        });
        Poll::Ready(read.map(|count| buffer.put_slice(&bytes[..count])))
    }
}

impl hyper::rt::Write for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(self.left().and_then(|left| {
            self.stream.set_write_timeout(left)?;
            (&*self.stream).write(bytes)
        }))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.stream.shutdown(Shutdown::Write))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_client_replaces_busiest_peers_oldest() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = Arc::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let clients = |peers: &[u8]| -> Clients {
            peers.iter().map(|peer| (IpAddr::from([10, 0, 0, *peer]), stream.clone())).collect()
        };
        assert_eq!(replaced(&clients(&[1, 2, 3])), 0);
        assert_eq!(replaced(&clients(&[1, 2, 3, 2, 1, 2])), 1);
    }
}
