//! `gpuheap export`: metrics for Prometheus.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use gpuheap_doctor::{Here, Machine};
use gpuheap_export::{Exposition, Format, MOST_LINES, Reading, Server};
use gpuheap_publish::Detail;
use gpuheap_text::printable;

use crate::exit::{Failure, Verdict};
use crate::values::{refuse_option, time};
use crate::{machine, output};

/// Arguments of `gpuheap export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArguments {
    /// Address and port to serve; port 0 takes a free port
    #[arg(long, value_name = "ADDR", value_parser = address, default_value = "127.0.0.1:9837")]
    #[arg(allow_hyphen_values = true)]
    listen: SocketAddr,

    /// Time between two readings, from 1s to 1h
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "15s")]
    #[arg(allow_hyphen_values = true)]
    interval: Duration,

    /// Maximum number of source lines exported for each program that publishes its heaps, 0 to 100
    #[arg(long, value_name = "N", value_parser = top_lines, default_value = "10")]
    #[arg(allow_hyphen_values = true)]
    top_lines: usize,

    /// Print one reading in Prometheus' text format instead of serving
    #[arg(long, conflicts_with_all = ["listen", "interval"])]
    once: bool,

    /// Read a recorded machine instead of this one
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
}

/// Serves the metrics until SIGTERM or SIGINT, or prints them once.
pub(crate) fn run(arguments: &ExportArguments) -> Result<Verdict, Failure> {
    let (file, top_lines) = (arguments.machine.as_ref(), arguments.top_lines);
    let read_first = || read(|| machine::read(file, Detail::Lines), top_lines);
    if arguments.once {
        let (machine, exposition) = read_first()?;
        if machine.programs.is_empty() {
            machine::devices(&machine, None)?;
        }
        return output::print(exposition.text(Format::Prometheus)).map(|()| Verdict::Fine);
    }
    // Binds the address before the first reading, which takes up to a minute, so that a bad address
    // is reported immediately.
    let refused = |error: std::io::Error| {
        Failure::wrong_use(format!(
            "--listen {}: {error}; give another address, or stop the program that has this one",
            arguments.listen
        ))
    };
    let server = Server::bind(arguments.listen).map_err(refused)?;
    let address = server.address().map_err(refused)?;
    let (machine, first) = read_first()?;
    if !address.ip().is_loopback() {
        output::note(&format!(
            "{address} is open to other hosts: everyone who reaches it can read this machine's \
             users, programs and lines"
        ));
    }
    output::note(&format!("reads {}", source(&machine, file)));
    output::note(&format!("serves http://{address}/metrics"));
    let _nvml = file.is_none().then(|| Here.keep_nvml());
    let again =
        move || read(|| Ok(machine.reread(Detail::Lines)), top_lines).ok().map(|(_, next)| next);
    server.serve(first, again, arguments.interval).map_err(Failure::environment_error)?;
    Ok(Verdict::Fine)
}

/// Reads the facts of a machine with `read`. Returns them with the metrics for Prometheus.
fn read(
    read: impl FnOnce() -> Result<Machine, Failure>,
    top_lines: usize,
) -> Result<(Machine, Exposition), Failure> {
    let (start, clock) = (SystemTime::now(), Instant::now());
    let mut machine = read()?;
    machine.examine();
    let reading = Reading { start, duration: clock.elapsed() };
    let exposition = Exposition::new(&machine, reading, top_lines);
    Ok((machine, exposition))
}

/// Describes the facts that are read.
fn source(machine: &Machine, file: Option<&PathBuf>) -> String {
    let place = match file {
        Some(path) => format!("the recorded machine {}", path.display()),
        None => "this machine".to_owned(),
    };
    let programs = machine.programs.len();
    let devices = match machine::devices(machine, None) {
        Err(failure) => failure.lines().join("; "),
        Ok(devices) => {
            let names: Vec<String> =
                devices.iter().map(|gpu| format!("{gpu} {}", printable(&gpu.name))).collect();
            names.join(", ")
        }
    };
    format!("{place}: {devices}; programs that publish: {programs}")
}

fn address(text: &str) -> Result<SocketAddr, String> {
    refuse_option(text)?;
    text.parse().map_err(|_| {
        format!("'{text}' is not an address with a port; write 127.0.0.1:9837 or [::1]:9837")
    })
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = time(text, "s", Duration::from_secs(3600), "15s, 1min")?;
    let is_short = time < Duration::from_secs(1);
    if is_short { Err(format!("'{text}' is too short; write 1s or more")) } else { Ok(time) }
}

fn top_lines(text: &str) -> Result<usize, String> {
    refuse_option(text)?;
    let number = text.parse().ok().filter(|number| *number <= MOST_LINES);
    number.ok_or_else(|| format!("'{text}' is not a number of lines; write 0 to {MOST_LINES}"))
}
