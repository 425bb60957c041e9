//! Runs the workloads of `../workload.hpp` through gpuheap's Rust interface. `../run` starts this
//! program and C++ programs. All use the same sizes in the same order and print the same lines.
//!
//! ```text
//! gpuheap-peers [--device NAME] [--scale N] [--environment] POOL WORK...
//! gpuheap-peers pools
//! ```

mod random;
mod replay;
mod single;
mod threads;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use gpuheap::{Device, Heap, PoolKind};

const USAGE: &str = "\
usage: gpuheap-peers [--device NAME] [--scale N] [--environment] POOL WORK...
       gpuheap-peers pools

  POOL           a name that 'pools' lists
  WORK           hot, random, threads, crossfree, first, reclaim, replay:FILE or calls:FILE
  --device NAME  cuda:0 unless said otherwise; emulated on a machine without a GPU
  --scale N      does one part in N of the work
  --environment  lets the variables GPUHEAP_* say what the heap is like";

pub(crate) type Done<T = ()> = Result<T, Box<dyn Error>>;

/// Heap that is measured. Most workloads do one part in `scale` of their full work.
pub(crate) struct Peer {
    pub(crate) device: Device,
    pub(crate) heap: Heap,
    /// Time to make the heap once the device's context exists, in milliseconds.
    pub(crate) open_ms: f64,
    pub(crate) scale: u64,
    name: String,
}

struct Arguments {
    device: String,
    scale: u64,
    environment: bool,
    pool: String,
    works: Vec<String>,
}

fn main() -> ExitCode {
    let failed = |text: &str, code| {
        // If stderr cannot be written, the text is lost.
        let _ = writeln!(io::stderr(), "{text}");
        ExitCode::from(code)
    };
    let Some(arguments) = Arguments::parse(std::env::args().skip(1)) else {
        return failed(USAGE, 2);
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string(), 3),
    }
}

fn run(arguments: &Arguments) -> Done {
    if arguments.pool == "pools" {
        return Ok(writeln!(io::stdout(), "{}", PoolKind::ALL.map(PoolKind::name).join(" "))?);
    }
    let mut peer = Peer::open(arguments)?;
    for work in &arguments.works {
        match work.as_str() {
            "hot" => single::hot(&mut peer)?,
            "random" => single::random_sizes(&mut peer)?,
            "first" => single::first(&mut peer)?,
            "reclaim" => single::reclaim(&mut peer)?,
            "threads" => threads::threads(&mut peer)?,
            "crossfree" => threads::cross_free(&mut peer)?,
            work => match work.split_once(':') {
                Some(("replay", file)) => replay::replay(&mut peer, file)?,
                Some(("calls", file)) => replay::calls(&mut peer, file)?,
                _ => return Err(format!("'{work}' is no work\n{USAGE}").into()),
            },
        }
    }
    Ok(())
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
        let mut arguments = Arguments {
            device: "cuda:0".to_owned(),
            scale: 1,
            environment: false,
            pool: String::new(),
            works: Vec::new(),
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--device" => arguments.device = words.next()?,
                "--scale" => {
                    arguments.scale = words.next()?.parse().ok().filter(|scale| *scale > 0)?;
                }
                "--environment" => arguments.environment = true,
                word if word.starts_with('-') => return None,
                _ => {
                    arguments.pool = word;
                    arguments.works = words.collect();
                    break;
                }
            }
        }
        (!arguments.pool.is_empty()).then_some(arguments)
    }
}

impl Peer {
    fn open(arguments: &Arguments) -> Done<Peer> {
        let device = Device::open(&arguments.device)?;
        let start = Instant::now();
        let mut builder = Heap::builder(&device).pool(PoolKind::parse(&arguments.pool)?);
        if !arguments.environment {
            builder = builder.without_environment();
        }
        let heap = builder.build()?;
        let open_ms = start.elapsed().as_secs_f64() * 1e3;
        let (name, scale) = (arguments.pool.clone(), arguments.scale);
        Ok(Peer { device, heap, open_ms, scale, name })
    }

    /// Returns the heap's peak of reserved bytes.
    pub(crate) fn reserved_peak(&self) -> Done<u64> {
        Ok(self.heap.usage()?.reserved_peak)
    }

    /// Prints one line of results.
    pub(crate) fn result(&self, work: &str, figures: &str) -> Done {
        Ok(writeln!(io::stdout(), "RESULT peer={} work={work} {figures}", self.name)?)
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
