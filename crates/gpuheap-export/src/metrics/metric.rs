//! The table of all metrics.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// Type and unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Number,
    Bytes,
    Seconds,
    Counter,
    Info,
}

impl Shape {
    /// Returns the metric's type, its unit, and the suffix that its samples add to their name.
    pub(super) fn definition(self) -> (MetricType, Option<Unit>, &'static str) {
        match self {
            Shape::Number => (MetricType::Gauge, None, ""),
            Shape::Bytes => (MetricType::Gauge, Some(Unit::Bytes), "_bytes"),
            Shape::Seconds => (MetricType::Gauge, Some(Unit::Seconds), "_seconds"),
            Shape::Counter => (MetricType::Counter, None, "_total"),
            Shape::Info => (MetricType::Info, None, "_info"),
        }
    }
}

macro_rules! metrics {
    ($($metric:ident = $name:literal, $shape:ident, $help:literal;)*) => {
        /// A metric.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Metric {
            $(#[doc = $help] $metric,)*
        }

        impl Metric {
            /// All metrics.
            pub const ALL: &[Metric] = &[$(Metric::$metric,)*];

            /// Returns the name without the unit.
            pub(super) fn name(self) -> &'static str {
                match self { $(Metric::$metric => concat!("gpuheap_", $name),)* }
            }

            pub(super) fn shape(self) -> Shape {
                match self { $(Metric::$metric => Shape::$shape,)* }
            }

            pub(super) fn help(self) -> &'static str {
                match self { $(Metric::$metric => $help,)* }
            }
        }
    };
}

metrics! {
    Build = "build", Info, "Version of gpuheap.";
    ReadingTimestamp = "reading_timestamp", Seconds, "Start of the last reading, in Unix time.";
    ReadingDuration = "reading_duration", Seconds, "Duration of the last reading.";
    ReadingSkipped = "reading_skipped", Number, "1 for each probe that the last reading skipped.";
    Driver = "driver", Info, "Version of the NVIDIA driver.";
    DriverUp = "driver_up", Number, "1 if NVML answers, else 0.";
    Device = "device", Info, "Name of a device.";
    DeviceUp = "device_up", Number, "1 if the device answers, else 0.";
    DeviceMemory = "device_memory", Bytes, "Memory of a device: used, free, reserved by the driver.";
    DeviceUnaccounted = "device_unaccounted", Bytes,
        "Used memory of no listed process; negative if processes share memory.";
    Bar1 = "bar1", Bytes, "Window through which PCIe reaches a device's memory: used, free.";
    Holders = "holders", Number, "Processes that are listed for a device or have it open, by class.";
    ProcessMemory = "process_memory", Bytes, "Memory of a process on a device.";
    ProgramUp = "program_up", Number, "1 if a program that publishes answers, else 0.";
    HeapLive = "heap_live", Bytes, "Live bytes of a heap, as requested.";
    HeapLivePeak = "heap_live_peak", Bytes, "High-water mark of a heap's live bytes.";
    HeapCached = "heap_cached", Bytes, "Free memory that a heap keeps.";
    HeapReserved = "heap_reserved", Bytes, "Memory that a heap took from the driver.";
    HeapLimit = "heap_limit", Bytes, "Limit of a heap's reserved memory: hard, soft.";
    HeapAllocations = "heap_allocations", Counter, "Allocations of a heap.";
    HeapFrees = "heap_frees", Counter, "Frees of a heap.";
    LineBytes = "line", Bytes, "Live bytes that a line of a program allocated.";
    LineAllocations = "line_allocations", Number, "Live allocations of a line of a program.";
    Finding = "doctor_finding", Number, "Findings of the doctor, by rule.";
    FindingBytes = "doctor_finding", Bytes, "Memory that findings of the doctor are about, by rule.";
    LeftOut = "left_out", Number, "Entries that bounds of this exporter leave out, by kind.";
}

impl Metric {
    /// Returns the name of the metric's samples.
    pub fn sample_name(self) -> String {
        self.name().to_owned() + self.shape().definition().2
    }
}
