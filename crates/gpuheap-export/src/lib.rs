//! Metrics of a machine's GPU memory, for Prometheus.
//!
//! * [`Exposition`]: the metrics of one reading, as text in two formats.
//! * [`Metric`]: all metrics with their names.
//! * [`Server`]: serves the last reading over HTTP.
#![forbid(unsafe_code)]

mod format;
mod metrics;
mod server;

use gpuheap_doctor::Machine;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;

pub use self::format::Format;
use self::metrics::samples;
pub use self::metrics::{MOST_LINES, Metric, Reading};
pub use self::server::Server;

/// The metrics of one reading, as text.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    open_metrics: String,
    prometheus: String,
}

impl Exposition {
    /// Returns the metrics of a machine that was [examined](Machine::examine), with at most
    /// `top_lines` source lines for each program that publishes its heaps.
    pub fn new(machine: &Machine, reading: Reading, top_lines: usize) -> Exposition {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(samples(machine, reading, top_lines)));
        let mut exposition = Exposition::default();
        // A write to a string never fails.
        let _ = text::encode(&mut exposition.open_metrics, &registry);
        let _ = prometheus_text::encode(&mut exposition.prometheus, &registry);
        exposition
    }

    /// Returns the text in a format.
    pub fn text(&self, format: Format) -> &str {
        match format {
            Format::OpenMetrics => &self.open_metrics,
            Format::Prometheus => &self.prometheus,
        }
    }
}
