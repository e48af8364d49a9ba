// How values are called, counted and dated.

export const SEVERITIES = ["critical", "high", "medium", "low", "info"];
export const STATUS_NAMES = { open: "Open", in_progress: "In progress", resolved: "Resolved", dismissed: "Dismissed" };
export const STATUSES = Object.keys(STATUS_NAMES);
export const STATUS_VERBS = { open: "Open", in_progress: "Start", resolved: "Resolve", dismissed: "Dismiss" };
export const REASONS = {
	false_positive: "False positive",
	accepted_risk: "Accepted risk",
	wont_fix: "Won't fix",
	used_in_tests: "Used in tests",
	duplicate: "Duplicate",
	fixed: "Fixed",
};
export const REASONS_FOR = {
	resolved: ["fixed", "duplicate"],
	dismissed: ["false_positive", "accepted_risk", "wont_fix", "used_in_tests", "duplicate"],
};
export const YES_OR_NO = { true: "yes", false: "no" };
export const RUN_NAMES = { running: "Running", completed: "Completed", failed: "Failed" };

const NUMBER = new Intl.NumberFormat("en");
const MOMENT = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
const UNITS = [["y", 31_557_600], ["mo", 2_629_800], ["d", 86_400], ["h", 3_600], ["min", 60]];

export const number = (value) => NUMBER.format(value);
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
export const moment = (at) => MOMENT.format(new Date(at));
export const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);

/** Cut strangers' text so that it turns nothing around beside it. */
export function cut(text, length) {
	const plain = text.replace(/\p{Bidi_C}/gu, "");
	const short = plain.length > length ? `${plain.slice(0, length - 1)}…` : plain;
	return /[\u0590-\u08ff]/.test(short) ? `\u2068${short}\u2069` : short;
}

/** Name what a decision is about, which may still be read. */
export const object = (tasks) => (tasks.length === 1 && tasks[0] ? `“${cut(tasks[0].title, 60)}”` : count(tasks.length, "finding"));

export function age(at, now = Date.now()) {
	const seconds = Math.max(0, (now - Date.parse(at)) / 1000);
	const unit = UNITS.find(([, length]) => seconds >= length);
	return unit ? `${Math.floor(seconds / unit[1])} ${unit[0]}` : "now";
}

export function webAddress(text) {
	return /^https?:\/\/\S+$/i.test(text) && URL.canParse(text) ? new URL(text) : null;
}
