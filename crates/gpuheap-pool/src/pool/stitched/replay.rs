//! Harness, not a test: replays traces through the policy over the model, with the estimated cost
//! of the driver's calls. `GPUHEAP_TRACES` is a folder of rows `op,id,bytes,stream`, and
//! `DEVICE_MIB` the size of the device.

use std::collections::HashMap;
use std::time::Instant;

use crate::stream::StreamHandle;

use super::{Stitched, Tuning};
use crate::limits::Limits;
use crate::order::Order;
use crate::pool::{Environment, Policy, Request};
use crate::source::MemorySource;
use crate::stats::RunningStats;
use crate::testing::Model;

struct Event {
    allocates: bool,
    id: usize,
    bytes: u64,
    stream: usize,
}

fn read(path: &std::path::Path) -> (Vec<Event>, usize) {
    let text = std::fs::read_to_string(path).unwrap();
    let (mut ids, mut events, mut streams) = (HashMap::new(), Vec::new(), HashMap::new());
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let allocates = fields[0] == "a";
        let fresh = ids.len();
        let id = if allocates {
            ids.insert(fields[1].to_owned(), fresh);
            fresh
        } else {
            match ids.get(fields[1]) {
                Some(id) => *id,
                None => continue,
            }
        };
        let fresh = streams.len();
        let stream = *streams.entry(fields[3].to_owned()).or_insert(fresh);
        events.push(Event { allocates, id, bytes: fields[2].parse().unwrap_or(0), stream });
    }
    (events, ids.len())
}

fn replay(name: &str, events: &[Event], ids: usize, tuning: Tuning, capacity: u64, passes: usize) {
    let mut policy = Stitched::with(tuning);
    let mut model = Model::new(capacity);
    let (mut order, mut stats, mut stranded) =
        (Order::default(), RunningStats::default(), Vec::new());
    let slots = events.iter().map(|event| event.stream + 1).max().unwrap_or(0);
    let streams: Vec<_> = (0..slots)
        .map(|n| order.stream(100 + n as u64, StreamHandle(n + 10), || None, &mut model))
        .collect();
    let mut peak = 0;
    let mut line = format!("{name:16}");
    for pass in 0..passes {
        let (cost, changes) = (model.cost, model.changes);
        let mut live: Vec<Option<(u32, u64, usize)>> = vec![None; ids];
        let mut bytes = 0;
        let start = Instant::now();
        let mut act = |event: &Event, live: &mut Vec<Option<(u32, u64, usize)>>| -> bool {
            let stream = streams[event.stream];
            let mut env = Environment {
                source: &mut model,
                order: &mut order,
                stats: &mut stats,
                limits: Limits::default(),
                stranded: &mut stranded,
            };
            if event.allocates {
                if event.bytes == 0 {
                    return true;
                }
                let grant = match policy.allocate(Request { bytes: event.bytes, stream }, &mut env)
                {
                    Ok(grant) => grant,
                    Err(shortage) => {
                        println!("{} bytes: {shortage:?}", event.bytes);
                        return false;
                    }
                };
                env.stats.count_allocation(event.bytes, event.bytes);
                live[event.id] = Some((grant.key, event.bytes, event.stream));
                bytes += event.bytes;
                peak = bytes.max(peak);
            } else if let Some((key, freed, _)) = live[event.id].take() {
                env.stats.count_free(freed, freed);
                policy.free(key, stream, &mut env).unwrap();
                bytes -= freed;
            }
            true
        };
        let mut ended = true;
        for event in events {
            if !act(event, &mut live) {
                ended = false;
                break;
            }
        }
        for id in 0..ids {
            if let Some((_, _, stream)) = live[id] {
                act(&Event { allocates: false, id, bytes: 0, stream }, &mut live);
            }
        }
        if !ended {
            println!("{line} out of memory in pass {pass}");
            return;
        }
        let spent = start.elapsed().as_nanos() as f64 / events.len() as f64;
        let driver = (model.cost - cost) as f64 / events.len() as f64;
        line += &format!(" | {driver:7.0} + {spent:5.0} ns {:6} calls", model.changes - changes);
    }
    let reserved = model.reserved_peak().unwrap();
    println!(
        "{line} | peak {:6} MiB, util {:.3}, ranges {} maps of {} chunks",
        peak >> 20,
        peak as f64 / reserved as f64,
        policy.ranges.maps(),
        policy.memory.count(),
    );
}

#[test]
#[ignore = "a table of figures: run it in release, with GPUHEAP_TRACES set"]
fn traces() {
    let Some(folder) = std::env::var_os("GPUHEAP_TRACES") else { return };
    let only = std::env::var("GPUHEAP_TRACE").unwrap_or_default();
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    for path in paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if !name.contains(&only) {
            continue;
        }
        let (events, ids) = read(&path);
        let mut tuning = Tuning::default();
        tuning.slack = number("SLACK").unwrap_or(tuning.slack);
        tuning.allows_waste = number("SLACK").is_none();
        tuning.follows = number("FOLLOWS") != Some(0);
        let passes = number("PASSES").unwrap_or(3) as usize;
        let capacity = number("DEVICE_MIB").map_or(140 << 30, |mebibytes| mebibytes << 20);
        replay(&name, &events, ids, tuning, capacity, passes);
    }
}
