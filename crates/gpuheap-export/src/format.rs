//! Chooses the text format in which a client receives the metrics.

/// Format of a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Prometheus,
}

impl Format {
    /// Returns the format that the header `Accept` prefers. If the header names no known format,
    /// returns Prometheus' format.
    pub fn accepted(header: &str) -> Format {
        let weight = |types: &[&str]| {
            let ranges = header.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let name = parts.next()?.to_ascii_lowercase();
                let quality = parts.find_map(|part| part.strip_prefix("q="));
                let quality = quality.map_or(Some(1.0), |number| number.parse::<f32>().ok())?;
                types.contains(&name.as_str()).then_some(quality)
            });
            ranges.fold(0.0, f32::max)
        };
        let open_metrics = weight(&["application/openmetrics-text"]);
        match open_metrics > 0.0 && open_metrics >= weight(&["text/plain", "text/*", "*/*"]) {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    /// Returns the value of the header `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_header_chooses_format() {
        const PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0,\
                                  application/openmetrics-text;version=0.0.1;q=0.75,\
                                  text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (header, format) in [
            (PROMETHEUS, Format::OpenMetrics),
            ("Application/OpenMetrics-Text", Format::OpenMetrics),
            ("application/openmetrics-text; q=0", Format::Prometheus),
            ("application/openmetrics-text;q=0.4,text/plain", Format::Prometheus),
            ("application/openmetrics-text;q=x", Format::Prometheus),
            ("text/html,*/*;q=0.8", Format::Prometheus),
            ("", Format::Prometheus),
            (";;,,q=", Format::Prometheus),
        ] {
            assert_eq!(Format::accepted(header), format, "{header}");
        }
    }
}
