// Shows what the kernel has drawn ahead as soon as a control gets there. The kernel's own answer follows, and is equal.
const REST = 40; // milliseconds that the pointer stays over one value before it is asked for
const MOST = 30; // pictures that are kept
const key = (value) => (typeof value === "number" ? value.toFixed(6) : JSON.stringify(value));
const state = (control) => control.get("index") ?? control.get("value");

// What a press on the slider's track at this place would choose.
const pointed = (control, track, { clientX }) => {
  const { left, width } = track.getBoundingClientRect();
  const choices = control.get("_options_labels");
  const [low, high, step] = choices ? [0, choices.length - 1, 1] : ["min", "max", "step"].map((of) => control.get(of));
  const share = Math.min(Math.max((clientX - left) / width, 0), 1);
  return Math.min(low + step * Math.round((share * (high - low)) / step), high);
};

function initialize({ model }) {
  const controls = {}, places = {}, frames = new Map(), tracks = new WeakMap();
  let generation = 0, base = {}, seen = false, done = false, over = "", resting = null, asking = false, next = null;

  const show = (name) => {
    const shows = frames.get(name + key(state(controls[name])));
    const others = Object.entries(base).filter(([other]) => other !== name);
    if (!shows || others.some(([other, value]) => key(state(controls[other])) !== key(value))) return;
    for (const [place, html] of Object.entries(shows)) places[place].set_state({ value: html });
  };

  // A reader aims before they press, so what they aim at is asked for meanwhile: one at a time, the newest next.
  const ask = (name, value) => {
    if (frames.has(name + key(value)) || key(value) === key(state(controls[name]))) return;
    next = { name, state: value };
    if (!asking) send();
  };
  const send = () => {
    if ((asking = next !== null)) {
      try {
        model.send(next);
      } catch {
        leave(); // the kernel is gone
      }
    }
    next = null;
  };

  // Which control a track belongs to; "" for another panel's. Where no slider is left on the page, there is no more to do.
  const belongs = async (track) => {
    tracks.set(track, "");
    for (const name of model.get("aims")) {
      for (const view of await Promise.all(Object.values(controls[name].views ?? {}))) {
        seen = true;
        if (view.el.contains(track)) tracks.set(track, name);
      }
    }
    const views = Object.values(controls).flatMap((control) => Object.keys(control.views ?? {}));
    if (seen && views.length === 0) leave();
  };
  const point = (event) => {
    const track = event.target.closest?.(".noUi-base");
    if (track && !tracks.has(track)) {
      belongs(track).then(() => point(event), () => tracks.delete(track));
      return;
    }
    const name = track && !event.buttons && !event.target.closest(".noUi-handle") && tracks.get(track);
    const aims = name && !controls[name].get("disabled");
    const value = aims ? pointed(controls[name], track, event) : null;
    const now = aims ? name + key(value) : "";
    if (now === over) return;
    over = now;
    clearTimeout(resting);
    if (now) resting = setTimeout(ask, REST, name, value);
  };
  const press = () => clearTimeout(resting);
  // ipywidgets gives a slider's handle no name: a screen reader would say a number and not of what.
  const title = ({ target }) => {
    const handle = target.closest?.(".noUi-handle");
    const words = handle?.closest(".widget-inline-hbox")?.querySelector(".widget-label")?.textContent;
    if (words) handle.setAttribute("aria-label", words);
  };
  // A mouse's events, not a pointer's: those have fractions of a pixel, which a press hasn't.
  const leave = () => {
    clearTimeout(resting);
    document.removeEventListener("mousemove", point);
    document.removeEventListener("mousedown", press, true);
    document.removeEventListener("focusin", title, true);
    done = true;
  };

  const connect = async () => {
    for (const [name, id] of Object.entries(model.get("places"))) places[name] = await model.widget_manager.get_model(id);
    for (const [name, id] of Object.entries(model.get("controls"))) {
      controls[name] = await model.widget_manager.get_model(id);
      controls[name].on("change", () => show(name));
    }
    model.on("msg:custom", (message) => {
      if (message.answered) return send();
      if (message.generation !== generation) {
        frames.clear();
        over = "";
      }
      ({ generation, base } = message);
      if (!message.shows) return;
      frames.set(message.name + key(message.value), message.shows);
      if (frames.size > MOST) frames.delete(frames.keys().next().value);
      show(message.name); // the reader may be there already
    });
    if (done || model.get("aims").length === 0) return;
    document.addEventListener("mousemove", point);
    document.addEventListener("mousedown", press, true);
    document.addEventListener("focusin", title, true);
  };
  connect().catch(() => {}); // a page without these widgets has nothing to show ahead
  return leave;
}

export default { initialize };
