//! How long things took: counted to two digits, drawn in bars of half a doubling.

use crate::text::{escaped, grouped, time};
use std::fmt::Write;

/// Bars: up to 2^41 ns, half an hour, and what is longer.
const BARS: usize = 83;
/// Decimal digits that a duration is counted to.
const DIGITS: u8 = 2;

#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    pub(crate) name: String,
    times: hdrhistogram::Histogram<u64>,
    longest: u64,
}

/// The bar of a duration: two for each doubling.
fn bar_of(ns: u64) -> usize {
    let ns = ns.max(1);
    let bits = ns.ilog2() as usize;
    let upper_half = bits > 0 && ns >> (bits - 1) & 1 == 1;
    (2 * bits + usize::from(upper_half)).min(BARS - 1)
}

/// The first duration of a bar.
fn least_of(bar: usize) -> u64 {
    let doubling = 1u64 << (bar / 2);
    if bar.is_multiple_of(2) { doubling } else { doubling + doubling / 2 }
}

impl Histogram {
    pub(crate) fn new(name: String) -> Histogram {
        let Ok(times) = hdrhistogram::Histogram::new(DIGITS) else { unreachable!("fewer than six digits") };
        Histogram { name, times, longest: 0 }
    }

    pub(crate) fn add(&mut self, ns: u64) {
        // It grows with what it is given: refused is only what no 64-bit address space holds.
        let _ = self.times.record(ns);
        self.longest = self.longest.max(ns);
    }

    /// A duration in ns that so many of the calls did not exceed, to 1 %; never above the
    /// longest.
    pub(crate) fn quantile(&self, quantile: f64) -> u64 {
        self.times.value_at_quantile(quantile).min(self.longest)
    }

    /// How many durations lie in each bar.
    fn bars(&self) -> [u64; BARS] {
        let mut counts = [0; BARS];
        for recorded in self.times.iter_recorded() {
            counts[bar_of(self.times.lowest_equivalent(recorded.value_iterated_to()))] +=
                recorded.count_at_value();
        }
        counts
    }

    /// Both axes are logarithmic: one slow call in a million is seen.
    pub(crate) fn figure(&self) -> String {
        const WIDTH: f64 = 460.0;
        const HEIGHT: f64 = 170.0;
        const LEFT: f64 = 40.0;
        const TOP: f64 = 12.0;
        const BOTTOM: f64 = 26.0;
        let counts = self.bars();
        let used: Vec<usize> = (0..BARS).filter(|&bar| counts[bar] > 0).collect();
        let (first, last) = (used.first().copied().unwrap_or(0), used.last().copied().unwrap_or(0));
        // At least eight doublings, so that one bar is no wall.
        let (first, last) = (first.saturating_sub(2), (last + 2).max(first + 16));
        let most = counts.iter().copied().max().unwrap_or(1).max(1);
        let decades = (most as f64).log10().ceil().max(1.0);
        let step = (WIDTH - LEFT - 8.0) / (last - first + 1) as f64;
        let floor = HEIGHT - BOTTOM;
        // A single one is a tenth of a decade high.
        let height = |count: u64| (floor - TOP) * ((count as f64).log10() + 0.1) / (decades + 0.1);
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
        for decade in 0..=decades as u32 {
            let y = floor - height(10u64.pow(decade));
            let label = match decade {
                0..3 => 10u64.pow(decade).to_string(),
                3..6 => format!("{} k", 10u64.pow(decade - 3)),
                6..9 => format!("{} M", 10u64.pow(decade - 6)),
                _ => format!("{} G", grouped(10u64.pow(decade - 9))),
            };
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
            );
            // Not one into the other.
            if decades <= 4.0 || decade.is_multiple_of(2) {
                let _ = write!(
                    svg,
                    "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                    LEFT - 5.0,
                    y + 4.0
                );
            }
        }
        for (bar, &count) in counts.iter().enumerate().take(last + 1).skip(first) {
            let x = LEFT + (bar - first) as f64 * step;
            if count > 0 {
                let (from, to) = (time(least_of(bar)), time(least_of(bar + 1)));
                let _ = write!(
                    svg,
                    "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{} from {from} to {to}</title></rect>",
                    x + 0.5,
                    floor - height(count),
                    (step - 1.0).max(1.0),
                    height(count),
                    grouped(count),
                );
            }
        }
        // A label every so many doublings, at most eight.
        let every = (last - first).div_ceil(8).next_multiple_of(2);
        for bar in (first..=last).filter(|bar| bar.is_multiple_of(every)) {
            let x = LEFT + (bar - first) as f64 * step;
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{floor}\" y2=\"{}\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                floor + 4.0,
                HEIGHT - 8.0,
                time(least_of(bar))
            );
        }
        let caption = format!(
            "<figcaption>{} <span>{} · median {} · 99 % {} · longest {}</span></figcaption>",
            escaped(&self.name),
            grouped(self.times.len()),
            time(self.quantile(0.5)),
            time(self.quantile(0.99)),
            time(self.longest)
        );
        format!("<figure class=\"card\">{caption}{svg}</svg></figure>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_order_and_hold_their_durations() {
        for ns in (0..2000).chain([1 << 20, (1 << 30) + 7, u64::MAX]) {
            let bar = bar_of(ns);
            assert!(least_of(bar) <= ns.max(1), "{ns}");
            assert!(
                bar == BARS - 1 || ns < least_of(bar + 1) || ns == 0 || least_of(bar) == least_of(bar + 1),
                "{ns}"
            );
        }
    }

    /// A bar begins where a counted duration begins, so that none is drawn in its neighbour.
    #[test]
    fn each_duration_is_drawn_in_its_own_bar() {
        for bar in 0..BARS - 1 {
            for ns in [least_of(bar), least_of(bar + 1) - 1] {
                let mut times = Histogram::new(String::new());
                times.add(ns);
                assert_eq!(times.bars()[bar_of(ns)], 1, "{ns}");
            }
        }
        let mut times = Histogram::new(String::new());
        times.add(u64::MAX);
        assert_eq!(times.bars()[BARS - 1], 1);
    }

    #[test]
    fn quantiles_and_the_figure() {
        let mut times = Histogram::new("<register>".to_owned());
        (0..99).for_each(|_| times.add(1000));
        times.add(5_000_000);
        assert!((1000..=1007).contains(&times.quantile(0.5)), "{}", times.quantile(0.5));
        assert_eq!((times.quantile(1.0), times.times.len()), (5_000_000, 100));
        let figure = times.figure();
        assert!(figure.contains("&lt;register&gt;") && !figure.contains("<register"), "{figure}");
        assert_eq!(figure.matches("<rect").count(), 2);
    }
}
