//! A quantity over time, with as many points as a screen shows.

/// A step function, its changes in the order of time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    changes: Vec<(u64, i64)>,
}

impl Series {
    pub(crate) fn add(&mut self, time: u64, change: i64) {
        self.changes.push((time, change));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Its highest value, and at most about `most` points: of each stretch of time the
    /// first, lowest, highest and last, so that no peak is lost.
    pub(crate) fn points(&mut self, span: u64, most: usize) -> (u64, Vec<(u64, u64)>) {
        self.changes.sort_by_key(|&(time, _)| time);
        let stretch = (span / (most as u64 / 4).max(1)).max(1);
        let (mut value, mut peak) = (0i64, 0);
        let mut points: Vec<(u64, u64)> = vec![(0, 0)];
        let mut held: Vec<(u64, u64)> = Vec::new();
        for &(time, change) in &self.changes {
            // What was made before the trace began may be given back in it.
            value = value.saturating_add(change).max(0);
            let point = (time, value as u64);
            peak = peak.max(point.1);
            if held.first().is_some_and(|first| first.0 / stretch != time / stretch) {
                thin(&mut held, &mut points);
            }
            held.push(point);
        }
        thin(&mut held, &mut points);
        points.push((span, value as u64));
        (peak, points)
    }
}

/// Four of them, in their order.
fn thin(held: &mut Vec<(u64, u64)>, to: &mut Vec<(u64, u64)>) {
    if held.len() <= 4 {
        return to.append(held);
    }
    let lowest = (0..held.len()).min_by_key(|&at| held[at].1).unwrap_or(0);
    let highest = (0..held.len()).max_by_key(|&at| held[at].1).unwrap_or(0);
    let mut kept = [0, lowest, highest, held.len() - 1];
    kept.sort_unstable();
    to.extend(kept.iter().map(|&at| held[at]));
    held.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_survives_and_the_points_are_few() {
        let mut series = Series::default();
        for at in 0..100_000u64 {
            series.add(2 * at, 10);
            series.add(2 * at + 1, -10);
        }
        series.add(77_777, 5000);
        series.add(77_778, -5000);
        let (peak, points) = series.points(200_000, 400);
        assert!(peak >= 5000 && points.iter().any(|point| point.1 >= 5000));
        assert!(points.len() <= 410, "{}", points.len());
        assert!(points.is_sorted_by_key(|point| point.0));
    }

    #[test]
    fn what_was_there_before_makes_nothing_negative() {
        let mut series = Series::default();
        series.add(5, -100);
        series.add(6, 7);
        assert_eq!(series.points(10, 100), (7, vec![(0, 0), (5, 0), (6, 7), (10, 7)]));
    }
}
