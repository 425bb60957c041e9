//! Tests of events. They order streams without the host, and can be queried, waited for and timed.

use std::time::Duration;

use gpuheap::emu::{Fault, FaultPlan, Schedule};
use gpuheap::{Device, Event, Heap, Stream};
use gpuheap_driver::CUresult;

use crate::support::{assert_no_findings, copy, device, emulated, fill, on_real_gpu, read};

const SCHEDULES: [Schedule; 4] = [
    Schedule::Immediate,
    Schedule::Seeded(3),
    Schedule::OnDemand,
    Schedule::Lag(Duration::from_micros(10)),
];

#[test]
fn event_orders_streams_without_blocking() {
    for schedule in SCHEDULES {
        let device = device(schedule);
        let heap = Heap::new(&device).unwrap();
        let (writer, reader) = (device.stream().unwrap(), device.stream().unwrap());
        let source = heap.allocate(4 << 20, &writer).unwrap();
        let target = heap.allocate(4 << 20, &reader).unwrap();
        fill(&source, 7, &writer);
        let written = writer.record().unwrap();
        reader.wait(&written).unwrap();
        copy(&source, &target, &reader);
        if let Some(emulator) = device.emulator() {
            for waits in ["cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize"] {
                assert_eq!(emulator.calls_of(waits), 0, "{schedule:?}");
            }
            if schedule == Schedule::OnDemand {
                assert!(!written.is_done().unwrap() || !reader.is_done().unwrap());
            }
        }
        // The reader's work stays ordered after the write, even if the event is dropped.
        drop(written);
        assert!(read(&target, &device).iter().all(|byte| *byte == 7), "{schedule:?}");
        // Only this wait orders the write below after the read.
        writer.wait(&reader.record().unwrap()).unwrap();
        fill(&source, 8, &writer);
        source.free_on(&writer).unwrap();
        drop((target, heap));
        device.synchronize().unwrap();
        assert_no_findings(&device);
    }
}

#[test]
fn events_and_streams_report_completion() {
    for schedule in SCHEDULES {
        let device = device(schedule);
        let heap = Heap::new(&device).unwrap();
        let stream = device.stream().unwrap();
        let block = heap.allocate(1 << 20, &stream).unwrap();
        fill(&block, 1, &stream);
        let event = stream.record().unwrap();
        // A loop that queries the event ends.
        while !event.is_done().unwrap() {}
        fill(&block, 2, &stream);
        while !stream.is_done().unwrap() {}
        fill(&block, 3, &stream);
        let event = stream.record().unwrap();
        event.synchronize().unwrap();
        assert!(event.is_done().unwrap());
        // An event can be queried after its block and stream are dropped.
        drop((block, heap, stream));
        assert!(event.is_done().unwrap());
        assert_no_findings(&device);
    }
}

#[test]
fn event_query_works_across_threads() {
    fn across_threads<T: Send + Sync>() {}
    across_threads::<(Event, Stream, Device)>();
    let device = device(Schedule::OnDemand);
    let event = device.stream().unwrap().record().unwrap();
    std::thread::scope(|scope| scope.spawn(|| event.synchronize().unwrap()).join().unwrap());
    assert!(event.is_done().unwrap());
    assert_no_findings(&device);
}

#[test]
fn timed_events_measure_elapsed_time() {
    let lag = Duration::from_micros(1500);
    let device = device(Schedule::Lag(lag));
    let heap = Heap::new(&device).unwrap();
    let stream = device.stream().unwrap();
    let block = heap.allocate(64 << 20, &stream).unwrap();
    let before = stream.record_timed().unwrap();
    fill(&block, 1, &stream);
    let after = stream.record_timed().unwrap();
    stream.synchronize().unwrap();
    let elapsed = after.elapsed_since(&before).unwrap();
    if on_real_gpu() {
        assert!(elapsed > Duration::ZERO);
    }
    assert_eq!(before.elapsed_since(&before).unwrap(), Duration::ZERO);
    if elapsed > Duration::ZERO {
        let error = before.elapsed_since(&after).unwrap_err().to_string();
        assert!(error.contains("ms later; swap them"), "{error}");
    }
    drop((block, heap));
    assert_no_findings(&device);
}

#[test]
fn untimed_event_explains_missing_time() {
    let device = device(Schedule::OnDemand);
    let stream = device.stream().unwrap();
    let (plain, timed) = (stream.record().unwrap(), stream.record_timed().unwrap());
    insta::assert_snapshot!(timed.elapsed_since(&plain).unwrap_err(), @"an event made by Stream::record keeps no time; make both by Stream::record_timed");
    if !on_real_gpu() {
        let later = stream.record_timed().unwrap();
        insta::assert_snapshot!(later.elapsed_since(&timed).unwrap_err(), @"the time between two events is known once both are reached; call synchronize on them first");
    }
    let other = emulated(Schedule::Immediate);
    let foreign = other.stream().unwrap().record_timed().unwrap();
    let error = timed.elapsed_since(&foreign).unwrap_err().to_string();
    assert!(error.contains("no clock in common; record both on streams of one device"), "{error}");
    let error = stream.wait(&foreign).unwrap_err().to_string();
    assert!(error.contains("call synchronize on the event instead"), "{error}");
    for device in [&device, &other] {
        assert!(error.contains(device.to_string().trim_end_matches(')')), "{error}");
    }
    assert_no_findings(&device);
}

#[test]
fn driver_failure_leaks_no_event() {
    let device = emulated(Schedule::Immediate);
    let emulator = device.emulator().unwrap();
    let stream = device.stream().unwrap();
    for symbol in ["cuEventCreate", "cuEventRecord"] {
        let fault = Fault::nth(symbol, 1, CUresult::ERROR_UNKNOWN);
        emulator.set_faults(FaultPlan::new([fault]));
        let error = stream.record().unwrap_err();
        assert_eq!(error.driver().unwrap().function(), symbol);
    }
    // Only the second event is destroyed, because the first was never made.
    assert_eq!(emulator.calls_of("cuEventDestroy_v2"), 1);
    assert_no_findings(&device);
}

#[test]
fn event_orders_streams_across_devices() {
    let devices = crate::peers::two_devices();
    let [one, two] = &devices[..] else { return };
    let (here, there) = (one.stream().unwrap(), two.stream().unwrap());
    let event = here.record().unwrap();
    there.wait(&event).unwrap();
    there.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    assert_no_findings(one);
}
